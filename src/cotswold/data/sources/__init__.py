"""Sources of samples: folders, archives, arrays, sequences, plug-ins."""
