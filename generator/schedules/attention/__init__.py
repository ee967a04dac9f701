"""What the schedules of attention share: how a muGraph is read, its variants, its writer."""
