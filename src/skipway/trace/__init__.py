"""Run any model, record what happened, leave no trace."""
