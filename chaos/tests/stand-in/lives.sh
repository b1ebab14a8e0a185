#!/bin/sh
# Stands in for a broker: says that it is ready, and lives.
echo ready
while :; do sleep 0.01; done
