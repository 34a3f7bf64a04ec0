"""Launch, observe, stop and settle the attempts of a job."""
