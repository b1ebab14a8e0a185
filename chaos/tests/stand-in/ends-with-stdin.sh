#!/bin/sh
# Stands in for a broker: says that it is ready, and ends when the harness is gone.
echo ready
exec cat > /dev/null
