"""The job branch of a recovery: choose how an interrupted job resumes."""
