#!/bin/sh
# Stands in for a broker whose data cannot be used: it ends before it is ready.
echo nothing to start with >&2
exit 3
