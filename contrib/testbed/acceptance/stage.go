package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The machines' network: a bridge that leads nowhere else.
const (
	bridge   = "acceptance0"
	nodeAddr = "10.77.0.2"
	nodeName = "gpu1"
)

// rig is the stage: two machines and the pages' commands.
type rig struct {
	ctx        context.Context // of the step that runs
	o          options
	group      string // control group of all machines
	work       string // folder of all machines' files
	manual     *manual
	head, node *machine
	old, new   string // versions of slurmbridge's two packages
}

// users are ordinary ones, with the applications that each runs.
var users = []struct {
	name string
	uid  int
	apps []string
}{
	{"alice", 3001, []string{"gromacs", "alexnet"}},
	{"bob", 3002, []string{"lammps", "alexnet"}},
}

// run boots the machines, makes all checks and clears everything away.
func run(ctx context.Context, o options) error {
	self, err := os.Readlink("/proc/self") // this process's number out there
	if err != nil {
		return err
	}
	for _, left := range staleGroups() {
		dropGroups(left)
	}
	work, err := os.MkdirTemp("", prefix)
	if err != nil {
		return err
	}
	r := &rig{ctx: ctx, o: o, work: work, group: prefix + self}
	defer r.clear()
	if o.keep {
		fmt.Printf("--keep: nsenter -t %s -m -p -n, then nsenter -a -t LEADER, leads onto a machine\n", self)
	}
	if err := attempt(r.build); err != nil {
		return err
	}
	ok := r.runAll(ctx)
	if o.keep && ctx.Err() == nil {
		fmt.Printf("\nkept: %s is LEADER %d, %s is LEADER %d; Ctrl-C ends them\n", r.head.name, r.head.leader, r.node.name,
			r.node.leader)
		<-ctx.Done()
	}
	if !ok {
		return errors.New("not every check holds")
	}
	return nil
}

// prefix begins the names of what isn't in the namespaces: control groups and an empty folder to mount on. The groups'
// names end with the number of their process.
const prefix = "slurmbridge-acceptance-"

// clear ends every process in here but this one, the first, and removes what the kernel would leave.
func (r *rig) clear() {
	_ = syscall.Kill(-1, syscall.SIGKILL)
	dropGroups(r.group)
	_ = errors.Join(unix.Unmount(r.work, unix.MNT_DETACH), os.Remove(r.work))
}

// build makes the stage: private mounts, the bridge, two machines that
// aren't booted yet.
func (r *rig) build() {
	check(because("make mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")))
	mount("proc", "/proc", "")
	mount("tmpfs", r.work, "mode=0755,size=4g")
	// What nspawn leaves in /run for systemd's other tools stays in here.
	check(os.MkdirAll("/run/systemd", 0o755))
	mount("tmpfs", "/run/systemd", "mode=0755")
	for _, args := range []string{"set lo up", "add " + bridge + " type bridge", "set " + bridge + " up"} {
		must(call(r.ctx, append([]string{"ip", "link"}, strings.Fields(args)...)...))
	}
	root := must(filepath.Abs(filepath.Join(roots, r.o.release)))
	var err error
	r.manual, err = readPages(".")
	check(err)
	r.head, r.node = newMachine(r.work, root, "head", "10.77.0.1"), newMachine(r.work, root, nodeName, nodeAddr)
}

// plainConf is slurm.conf of a cluster that hands out whole GPUs and knows nothing of
// slurmbridge. In a container that isn't given control groups' controllers Slurm uses
// none. A node is down after half a minute, so that the test needn't wait five.
const plainConf = `ClusterName=acceptance
SlurmctldHost=head
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
MinJobAge=3600
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
NodeName=gpu1 CPUs=8 RealMemory=16000 Gres=gpu:titanxp:1
PartitionName=gpu Nodes=gpu1 Default=YES MaxTime=1:00:00 State=UP
`

// wants is where systemd finds what a machine starts.
const wants = "/etc/systemd/system/multi-user.target.wants"

// prepare writes what a site has before slurmbridge comes: network, users, Slurm.
func (r *rig) prepare() {
	cgroup := "CgroupPlugin=disabled\n"
	if r.o.release == "bookworm" {
		cgroup = "CgroupPlugin=cgroup/v1\n" // 22.05 knows no other that it doesn't set up at once
	}
	for _, m := range r.machines() {
		for path, text := range map[string]string{
			"/etc/hostname": m.name + "\n",
			"/etc/hosts":    fmt.Sprintf("127.0.0.1 localhost\n%s head\n%s %s\n", r.head.addr, nodeAddr, nodeName),
			// Debian's own name for a container's side of its network.
			"/etc/systemd/network/10-host0.network": "[Match]\nName=host0\n[Network]\nAddress=" + m.addr +
				"/24\nLinkLocalAddressing=no\n",
			"/etc/slurm/slurm.conf":  plainConf,
			"/etc/slurm/gres.conf":   "Name=gpu Type=titanxp File=/dev/nvidia0\n",
			"/etc/slurm/cgroup.conf": cgroup,
			// The admin's Y.
			"/etc/apt/apt.conf.d/90acceptance": "APT::Get::Assume-Yes \"true\";\nDpkg::Use-Pty \"false\";\n",
		} {
			m.write(path, text, 0o644)
		}
		// Slurm's daemons are started once users and card are there.
		for _, unit := range []string{"slurmctld.service", "slurmd.service"} {
			check(os.RemoveAll(filepath.Join(m.dir, wants, unit)))
		}
		networkd := filepath.Join(m.dir, wants, "systemd-networkd.service")
		if err := os.Symlink("/usr/lib/systemd/system/systemd-networkd.service", networkd); !os.IsExist(err) {
			check(err)
		}
	}
	r.simulate()
}

// makeUsers makes users and folders on a machine that has booted.
func (r *rig) makeUsers(m *machine) {
	script := "install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm\n"
	for _, u := range users {
		script += fmt.Sprintf("useradd --create-home --shell /bin/bash --uid %d %s\n", u.uid, u.name)
		for _, app := range u.apps {
			script += fmt.Sprintf("install -d -o %s -g %[1]s /home/%[1]s/%[2]s\n", u.name, app)
			script += fmt.Sprintf("cat >/home/%s/%s/job.sh <<'END'\n#!/bin/sh\nexport GPUSIM_STATE=%s\nexec %s/gpusim run "+
				"%[2]s\nEND\n", u.name, app, simState, simDir)
		}
	}
	r.sh(m, script)
}

func (r *rig) machines() []*machine { return []*machine{r.head, r.node} }

// both runs commands on both machines; UNIT in them stands for the unit, which is also the package, that each has.
func (r *rig) both(script string) {
	for _, m := range r.machines() {
		r.sh(m, strings.ReplaceAll(script, "UNIT", r.unit(m)))
	}
}

func (r *rig) unit(m *machine) string {
	if m == r.head {
		return "slurmbridge"
	}
	return "gpuprof"
}

// follow runs a block of the pages where it says, and returns what it printed.
func (r *rig) follow(where, name string) string {
	out, err := r.followed(where, name)
	check(err)
	return out
}

func (r *rig) followed(where, name string) (string, error) {
	b := r.manual.take(where, name)
	m := r.head
	if where == "nodes" {
		m = r.node
	}
	out, err := r.try(m, b.text)
	return out, because(fmt.Sprintf("%s line %d", b.page, b.line), err)
}

// packages puts one version of the two packages where the pages' apt looks.
func (r *rig) packages(version string) {
	for _, m := range r.machines() {
		r.sh(m, "rm -f /root/*.deb")
		found, err := filepath.Glob(filepath.Join(programs, "acceptance", version, r.unit(m)+"_*.deb"))
		if err != nil || len(found) != 1 {
			fail("%d packages %s of the version called %s", len(found), r.unit(m), version)
		}
		m.write("/root/"+filepath.Base(found[0]), string(must(os.ReadFile(found[0]))), 0o644)
	}
}

// installed is the version of the controller's package.
func (r *rig) installed() string {
	return strings.TrimSpace(r.sh(r.head, "dpkg-query -W -f '${Version}' slurmbridge"))
}
