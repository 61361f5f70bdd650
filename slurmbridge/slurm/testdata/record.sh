#!/bin/bash
# Records what Slurm's commands print, for the tests in this folder.
#
#   record.sh FOLDER RELEASE [ROOT]
#
# sets up a private cluster in FOLDER (a short path that only it uses), submits a
# set of jobs as "nobody" with everything that makes parsing hard, and writes the
# answers to ./RELEASE. ROOT is another root folder to run Slurm from by chroot;
# FOLDER is then a path in it. Needs root, a user "slurm", and this machine's munge.
# shellcheck disable=SC2034  # jobs' numbers are used by their variables' names
set -eu
D=$1 REL=$2 ROOT=${3:-}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=$HERE/$REL
mkdir -p "$OUT"
in_root() { if [ -n "$ROOT" ]; then chroot "$ROOT" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF="$D/slurm.conf" "$@"; else env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF="$D/slurm.conf" "$@"; fi; }
as() { local u=$1; shift; in_root setpriv --reuid "$u" --regid "$(in_root id -g "$u")" --clear-groups "$@"; }
F=$ROOT$D

mkdir -p "$F"/{state,dev,log,munge}
chmod 755 "$F"
dd if=/dev/urandom of="$F/munge/key" bs=1 count=1024 2>/dev/null
chown -R "$(id -u munge)" "$F/munge"; chmod 400 "$F/munge/key"; chmod 755 "$F/munge"
for i in 0 1; do [ -e "$F/dev/nvidia$i" ] || mknod "$F/dev/nvidia$i" c 1 3; done
SLURM=$(in_root id -u slurm)
NOBODY=$(in_root id -u nobody) # from 25.11 on Slurm takes the name for uid 99
chown -R "$SLURM" "$F/state" "$F/log"
HOST=$(hostname -s)
cat >"$F/gres.conf" <<E
NodeName=n1 Name=gpu Type=titanxp File=$D/dev/nvidia0
NodeName=n1 Name=mps Count=100 File=$D/dev/nvidia0
NodeName=n2 Name=gpu Type=titanxp File=$D/dev/nvidia[0-1]
NodeName=n2 Name=mps Count=200 File=$D/dev/nvidia[0-1]
NodeName=n3 Name=gpu Type=titanxp File=$D/dev/nvidia[0-1]
NodeName=n3 Name=shard Count=200 File=$D/dev/nvidia[0-1]
NodeName=n4 Name=gpu Type=shared File=$D/dev/nvidia0
E
echo CgroupPlugin=disabled >"$F/cgroup.conf"
[ "$REL" = 22.05 ] && echo CgroupAutomount=no >"$F/cgroup.conf"
cat >"$F/slurm.conf" <<E
ClusterName=recorded
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=27917
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket=$D/munge/sock
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool-%n
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu,mps,shard
ReturnToService=2
MpiDefault=none
DefMemPerCPU=100
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=27918 CPUs=16 RealMemory=16000 MemSpecLimit=500 Gres=gpu:titanxp:1,mps:100 Feature=pascal State=UNKNOWN
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=27919 CPUs=16 RealMemory=16000 Gres=gpu:titanxp:2,mps:200 Feature=pascal,big State=UNKNOWN
NodeName=n3 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=27920 CPUs=16 RealMemory=16000 Gres=gpu:titanxp:2,shard:200 State=UNKNOWN
NodeName=n4 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=27921 CPUs=16 RealMemory=16000 Gres=gpu:shared:1 State=UNKNOWN
NodeName=c1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=27922 CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=UNLIMITED State=UP
PartitionName=long Nodes=n[1-3],c1 MaxTime=UNLIMITED State=UP
PartitionName=hidden Nodes=n4 Hidden=YES State=UP
E
setpriv --reuid munge --regid "$(id -g munge)" --clear-groups munged --key-file="$F/munge/key" --socket="$F/munge/sock" --pid-file="$F/munge/pid" --log-file="$F/munge/log" --seed-file="$F/munge/seed" --num-threads=2
trap 'in_root scancel -u "$NOBODY" || true; sleep 2; kill $(cat "$F"/slurmctld.pid "$F"/slurmd-*.pid "$F"/munge/pid 2>/dev/null) 2>/dev/null || true' EXIT
in_root slurmctld; sleep 1
for n in n1 n2 n3 n4 c1; do in_root slurmd -N $n; done
sleep 3

S() { as nobody sbatch --parsable -D / -o /dev/null "$@" --wrap='sleep 600' || true; }
NL=$'\n'
# running
RGPU=$(S --gres=gpu:titanxp:1 -w n1 -t 5 -J whole)
RGPUS=$(S --gpus=1 -w n2 -t 1-02:03:04)
RMPS=$(S --gres=mps:60 -w n2 -J "$NL     Nodes=n2 CPU_IDs=0-1 Mem=100 GRES=mps:1(IDX:0)")
RMPS2=$(S --gres=mps:30 -w n2)
RSHARD=$(S --gres=shard:50 -w n3)
RSHARD2=$(S --gres=shard:60 -w n3)
RCPU=$(S -w c1 -p long)
RSPLIT=$(S -a 1-2 --gres=shard:20 -w n3)
sleep 3
# pending
S --gpus-per-task=1 -n 1 -H
S --gpus-per-socket=1 --sockets-per-node=1 -H
S --gpus-per-node=1 -H
RESV=$(S --gres=gpu:1 --exclusive -H)
S --gres=gpu:shared -H
S --gres=gpu:shared:1 -p gpu,hidden -H
S --gpus=shared:1 -H
S --gres=mps:30 --comment="hi|there${NL}7~ANOTHERNONCE7|N/A|x~" -J 'evil|name' -H
S --gres=mps:30 --comment=slurmbridge-gate -J slurmbridge-gate --begin=now+9000
S --comment=slurmbridge-gate -J slurmbridge-gate --begin=now+9000
HALF=$(S --gres=mps:50 --mem=2G -c 2 --begin=now+9000)
ARR=$(S --gres=mps:50 -a 1-5%2 -H)
SPLIT=$(S --gres=mps:50 -a 0-3 --begin=now+9000)
S --gres=mps:100 --dependency="afterok:$RGPU?afterany:$RGPUS"
S --gres=mps:100 --dependency="after:$SPLIT+5,afterany:$RGPU:$RGPUS" -x n1,n3 -C 'pascal&big'
S --gres=mps:100 --dependency=singleton -H
S --gres=mps:100 --dependency="after:$SPLIT" --begin=now+9000 --no-requeue
S --gres=mps:100 -C 'pascal|big' -A "acc|t${NL}9~ANOTHERNONCE9|" -H
S --gres=mps:5 -c 4 -n 2 --mem-per-cpu=150 -t 0 -w n2 -H
S --exclusive -p long -H
as nobody sbatch --parsable -D / -o /dev/null --gres=gpu:1 -H : --gres=mps:20 -H --wrap='sleep 600' || true
GATE=$(as "$SLURM" sbatch --parsable -J slurmbridge-gate --comment=slurmbridge-gate --begin=now+9000 --mem=1 -D / -o /dev/null --wrap='exit 0')
in_root scontrol update JobId="${SPLIT}_1" Gres=mps:33
in_root scontrol update JobId="${SPLIT}_1" ExcNodeList=n3
in_root scontrol update JobId="$HALF" AdminComment="slurmbridge: (default cpus=2 mem=2048) so|it is"
in_root scontrol update NodeName=c1 State=DRAIN Reason="power | supply${NL}NodeName=n1 State=DOWN Gres=gpu:9"
in_root scontrol update NodeName=n4 State=DOWN Reason="State=IDLE Gres=gpu:titanxp:7"
in_root scontrol update NodeName=n2 Comment="State=DOWN Partitions=x" || true
in_root scontrol create reservation ReservationName=r1 StartTime=now Duration=60 Users=root,"$NOBODY" Nodes=n1 Flags=maint,ignore_jobs >/dev/null
in_root scontrol update JobId="$RESV" ReservationName=r1
sleep 8

clean() { sed -e "s#$D#/srv/slurm#g" -e "s#\b$HOST\b#node#g" -e 's/OS=Linux .* RealMemory/OS=Linux 6.1.0 #1 SMP Debian RealMemory/' -e 's/BOOT_TIME .*/BOOT_TIME               = 0/'; }
T=(env TZ=UTC LC_ALL=C SLURM_TIME_FORMAT=%s)
N=$(cat "$HERE/nonce")
FORMAT=$(sed "s/NONCE/$N/g" "$HERE/format")
[ "$REL" = 22.05 ] && FORMAT=${FORMAT/excnodes:$N,/}
case $REL in 2[2-5].*) ;; *) FORMAT=${FORMAT/oversubscribe/exclusive} ;; esac
in_root "${T[@]}" SQUEUE_FORMAT2="$FORMAT" squeue --noheader --all --array --noconvert --local --sort=-p | clean >"$OUT/queue"
in_root "${T[@]}" SLURM_TIME_FORMAT='%d.%m. %H|%M' SQUEUE_FORMAT2="$FORMAT" squeue --noheader --all --array --noconvert --local --sort=-p | clean >"$OUT/queue-odd-times"
in_root "${T[@]}" squeue --noheader --all --local --array --states=PENDING --format='%A|%x' >"$OUT/excluded"
in_root "${T[@]}" scontrol -o -a show nodes | clean >"$OUT/nodes"
in_root "${T[@]}" scontrol show config | clean >"$OUT/config"
in_root "${T[@]}" scontrol -o -a show partitions | clean >"$OUT/partitions"
for j in RGPU RGPUS RMPS RMPS2 RSHARD RSHARD2 RCPU ARR; do
	in_root "${T[@]}" scontrol -d show job "${!j}" | clean >"$OUT/detail-${j,,}"
done
{
	printf 'show job %s\nshow hostnames %s\n' "$RGPUS" mark "$RMPS" mark 999999 mark "$RSHARD" mark | in_root "${T[@]}" scontrol -d
} 2>"$OUT/details.stderr" | clean >"$OUT/details"
err() { echo "\$ scontrol $*"; in_root scontrol "$@" 2>&1 && echo "exit 0" || echo "exit $?"; }
{
	err update JobId=999999 Gres=mps:1
	err update "JobId=$RMPS,$SPLIT,999999" Nice=1
	err update "JobId=$SPLIT" Gres=bogus:1
	err update "JobId=${SPLIT}_2" ReqNodeList=nowhere
	err update "JobId=$SPLIT,${SPLIT}_2" ReqNodeList=n1
	err update "JobId=${SPLIT}_2" Dependency=nonsense:1
	err update "JobId=${SPLIT}_77" Gres=mps:1
	err write batch_script 999999 -
} >"$OUT/errors"
in_root scancel "$GATE"
err update "JobId=$GATE" StartTime=now+60 >>"$OUT/errors"
in_root scancel -u "$NOBODY"; sleep 4
kill "$(cat "$F/slurmctld.pid")"; sleep 1
err show config >>"$OUT/errors"
echo "recorded in $OUT"
