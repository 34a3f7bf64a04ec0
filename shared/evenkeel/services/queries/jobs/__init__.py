"""Jobs for the API: lists, queue positions, and the plan of a job before it is submitted or changed."""
