#!/usr/bin/env bash
# Stops what up.sh started: jobs first, then the daemons, each by the id in its own file.
set -uo pipefail
home="${SLURM_HOME:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/state}"
export SLURM_CONF="$home/slurm.conf"
alive() { [ -f "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

if alive "$home/slurmctld.pid"; then
    timeout 10 scancel -u "$(id -un)" 2>/dev/null
    for _ in $(seq 100); do
        [ -z "$(timeout 5 squeue -h -t running,completing 2>/dev/null)" ] && break
        sleep 0.1
    done
fi
pids=()
for file in "$home/slurmctld.pid" "$home"/slurmd-*.pid "$home/munged.pid"; do
    alive "$file" && pids+=("$(cat "$file")") && kill "$(cat "$file")"
    rm -f "$file"
done
for _ in $(seq 100); do
    left=0
    for pid in ${pids[@]+"${pids[@]}"}; do kill -0 "$pid" 2>/dev/null && left=1; done
    [ "$left" = 0 ] && break
    sleep 0.1
done
[ "$left" = 0 ] || kill -9 "${pids[@]}" 2>/dev/null
rm -rf "$home/ctld" "$home"/spool-*  # the jobs are gone; logs and the key stay
