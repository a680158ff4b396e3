"""What carrying a study out would take, before it is begun."""
