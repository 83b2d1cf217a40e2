"""`hoptui train slurm`: a batch file for Slurm."""
