#!/bin/bash
# Runs a command on a Slurm cluster of one node, this machine, and stops and removes all that it started:
#   tests/slurm_node.sh twotowers book --profile profiles/slurm        (Debian: apt install slurm-wlm munge)
set -e
home=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null; wait; rm -rf "$home"' EXIT
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
user=$(id -un) host=$(hostname -s)
export SLURM_CONF=$home/slurm.conf PATH=$home/bin:$PATH:/usr/sbin
mkdir "$home"/state "$home"/spool "$home"/bin
printf '#!/bin/sh\nSLURM_CONF=%s exec %s "$@"\n' "$SLURM_CONF" "$(command -v srun)" > "$home/bin/srun"  # in jobs it is not set
chmod +x "$home/bin/srun"
chmod 711 "$home"  # munge wants it
cat > "$SLURM_CONF" << END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(port)
SlurmdPort=$(port)
SlurmUser=$user
SlurmdUser=$user
AuthInfo=socket=$home/munge.socket
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=64000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
END
(umask 077; head -c 1024 /dev/urandom > "$home/key")
munged --foreground --socket "$home/munge.socket" --key-file "$home/key" --log-file "$home/munge.log" \
  --pid-file "$home/munge.pid" --seed-file "$home/seed" 2> "$home/munged.txt" &
until [ -S "$home/munge.socket" ]; do kill -0 $! && sleep 0.1; done
slurmctld -D > "$home/slurmctld.log" 2>&1 &
slurmd -D -N "$host" > "$home/slurmd.log" 2>&1 &
until [ "$(sinfo --noheader --format %T 2> /dev/null)" = idle ]; do kill -0 $! && sleep 0.2; done
"$@"
