"""What a viewer knows: live or recorded series, commands, comparisons, report figures. No terminal."""
