#!/usr/bin/env bash
# A real Slurm of several nodes on this one machine, from Debian's packages (munge, slurmctld, one slurmd a node):
#
#     eval "$(slurm/local/up.sh)"      # up, and the commands of this shell find it; NODES=3 CPUS=8 before it to change its size
#     slurm/local/down.sh              # down, with every job on it
#
# Everything lies in slurm/local/state (or $SLURM_HOME), ports are free ones, daemons listen on the loopback address only.
# Memory and cores are not enforced (no cgroups). Partitions: main, and high, which preempts main by requeueing its jobs.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
home="${SLURM_HOME:-$here/state}"
nodes="${NODES:-2}" cpus="${CPUS:-4}" memory="${MEMORY:-16000}" grace="${GRACE:-20}" max_array="${MAX_ARRAY:-1001}"
first_job="${FIRST_JOB:-$(($(date +%s) % 60000000))}"
export SLURM_CONF="$home/slurm.conf" PATH="$PATH:/usr/sbin"  # which only root has in its PATH

say() { echo "$*" >&2; }
quit() { say "$*"; exit 1; }

install_packages() {
    command -v slurmctld slurmd munged >/dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        quit "slurmctld, slurmd and munged are needed: run 'apt-get install --no-install-recommends slurm-wlm munge' as root, then this again"
    say "installing slurm-wlm and munge ..."
    export DEBIAN_FRONTEND=noninteractive
    local log; log="$(mktemp)"
    { apt-get update && apt-get install -y --no-install-recommends slurm-wlm munge; } >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; quit "apt-get could not install slurm-wlm and munge: its last lines are above"; }
    rm -f "$log"
}

write_config() {
    local host ports
    host="$(hostname -s)"
    if ! getent hosts "$host" >/dev/null; then
        [ -w /etc/hosts ] || quit "the host name '$host' does not resolve: add '127.0.0.1 $host' to /etc/hosts"
        say "the host name '$host' does not resolve: adding it to /etc/hosts"
        echo "127.0.0.1 $host" >>/etc/hosts
    fi
    ports=($(python3 - "$((nodes + 1))" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))
PY
    ))
    cat >"$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
# cred_expire: how long a requeued job waits before it starts again; 120 s by default, 5 is the least.
AuthInfo=socket=$home/munge.socket,cred_expire=5
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
JobRequeue=1
ReturnToService=2
MinJobAge=3600
MaxArraySize=$max_array
KillWait=15
SlurmdTimeout=10
UnkillableStepTimeout=60
SlurmctldTimeout=10
FirstJobId=$first_job
StateSaveLocation=$home/ctld
SlurmdSpoolDir=$home/spool-%n
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd-%n.pid
SlurmctldLogFile=$home/slurmctld.log
SlurmdLogFile=$home/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
CONF
    for i in $(seq "$nodes"); do
        echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[$i]} CPUs=$cpus RealMemory=$memory"
    done >>"$SLURM_CONF"
    cat >>"$SLURM_CONF" <<CONF
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=$grace
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
CONF
}

start() {
    mkdir -p "$home/ctld"
    chmod 0755 "$home"
    [ -f "$home/munge.key" ] || (umask 077 && dd if=/dev/urandom of="$home/munge.key" bs=1024 count=1 status=none)
    munged --force --key-file="$home/munge.key" --socket="$home/munge.socket" --pid-file="$home/munged.pid" \
        --log-file="$home/munged.log" --seed-file="$home/munge.seed" 2>"$home/munged.err" ||
        quit "munged did not start: $(tail -n 1 "$home/munged.err")"
    slurmctld -i
    for i in $(seq "$nodes"); do
        mkdir -p "$home/spool-n$i"
        slurmd -N "n$i"
    done
    for _ in $(seq 1200); do
        [ "$(sinfo -h -N -p main -t idle -o %N 2>/dev/null | wc -l)" = "$nodes" ] && return
        sleep 0.1
    done
    sinfo >&2 || true
    quit "the nodes did not come up in two minutes; see $home/slurmctld.log and slurmd-n*.log"
}

install_packages
if [ -f "$home/slurmctld.pid" ] && kill -0 "$(cat "$home/slurmctld.pid")" 2>/dev/null; then
    say "already up: $home"
else
    SLURM_HOME="$home" "$here/down.sh" 2>/dev/null || true
    mkdir -p "$home"
    write_config
    start
    say "up: $nodes nodes of $cpus CPUs, partitions main and high; stop it with slurm/local/down.sh"
fi
echo "export SLURM_CONF='$SLURM_CONF'"
