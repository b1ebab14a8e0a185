#!/bin/sh
# Stands in for a broker: says that it is ready, and stops itself as with a failed disk.
echo ready
exit 70
