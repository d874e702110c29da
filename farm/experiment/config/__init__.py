"""AEPsych's configuration files, parsed and checked; and the slow tasks of an experiment."""
