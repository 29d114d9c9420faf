"""Pure reckoning on what was recorded: chart series, decimation, intervals. No I/O, no clock, no randomness."""
