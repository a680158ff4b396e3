"""Training: one visible loop over Lightning Fabric, optimisers and schedules, run folders, checkpoints."""
