"""`hoptui gpus --watch` and `--csv`: rows of the GPUs over time, as a table or in a file."""
