package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// rig is the stage: two machines, the README's commands, and the results so far.
type rig struct {
	o          options
	readme     *manual
	head, node *machine
	results    []result
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

// scale is how many GPU seconds pass in a second: a minute's job takes eight seconds.
const scale = 8

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

const plainGres = "Name=gpu Type=titanxp File=/dev/nvidia0\n"

// prepare writes what a site has before slurmbridge comes: network, users, Slurm.
func (r *rig) prepare() error {
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s %s\n%s %s\n", headAddr, headName, nodeAddr, nodeName)
	cgroup := "CgroupPlugin=disabled\n"
	if r.o.release == "bookworm" {
		cgroup = "CgroupPlugin=cgroup/v1\n" // 22.05 knows no other that it doesn't set up at once
	}
	for _, m := range r.machines() {
		files := map[string]string{
			"/etc/hostname": m.name + "\n",
			"/etc/hosts":    hosts,
			// Debian's own name for a container's side of its network.
			"/etc/systemd/network/10-host0.network": "[Match]\nName=host0\n[Network]\nAddress=" + m.addr + "/24\nLinkLocalAddressing=no\n",
			"/etc/slurm/slurm.conf":                 plainConf,
			"/etc/slurm/gres.conf":                  plainGres,
			"/etc/slurm/cgroup.conf":                cgroup,
			// The admin's Y.
			"/etc/apt/apt.conf.d/90acceptance": "APT::Get::Assume-Yes \"true\";\nDpkg::Use-Pty \"false\";\n",
		}
		for path, text := range files {
			if err := m.write(path, text, 0o644); err != nil {
				return err
			}
		}
		// Slurm's daemons are started once users and card are there.
		wants := filepath.Join(m.dir, "etc/systemd/system/multi-user.target.wants")
		for _, unit := range []string{"slurmctld.service", "slurmd.service"} {
			if err := os.Remove(filepath.Join(wants, unit)); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		networkd := filepath.Join(wants, "systemd-networkd.service")
		if err := os.Symlink("/usr/lib/systemd/system/systemd-networkd.service", networkd); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return r.simulate()
}

// settle makes users and folders on a machine that has booted.
func (m *machine) settle(ctx context.Context) error {
	script := "install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm\n"
	for _, u := range users {
		script += fmt.Sprintf("useradd --create-home --shell /bin/bash --uid %d %s\n", u.uid, u.name)
		for _, app := range u.apps {
			script += fmt.Sprintf("install -d -o %s -g %[1]s /home/%[1]s/%[2]s\n", u.name, app)
			script += fmt.Sprintf("cat >/home/%s/%s/job.sh <<'END'\n%sEND\n", u.name, app, jobScript(app))
		}
	}
	_, err := m.sh(ctx, script)
	return err
}

func jobScript(app string) string {
	return "#!/bin/sh\nexport GPUSIM_STATE=" + simState + "\nexec " + simDir + "/gpusim run " + app + "\n"
}

func (r *rig) machines() []*machine { return []*machine{r.head, r.node} }

// both runs commands on both machines.
func (r *rig) both(ctx context.Context, script string) error {
	return r.each(func(m *machine, _ string) error {
		_, err := m.sh(ctx, script)
		return err
	})
}

// each calls do for each machine and the unit, which is also the package, that it has.
func (r *rig) each(do func(m *machine, unit string) error) error {
	if err := do(r.head, "slurmbridge"); err != nil {
		return err
	}
	return do(r.node, "gpuprof")
}

// follow runs a block of the README where it says, and returns what it printed.
func (r *rig) follow(ctx context.Context, where, name string) (string, error) {
	b, err := r.readme.take(where, name)
	if err != nil {
		return "", err
	}
	m := r.head
	if where == "nodes" {
		m = r.node
	}
	out, err := m.sh(ctx, b.text)
	if err != nil {
		return out, fmt.Errorf("README.md line %d: %w", b.line, err)
	}
	return out, nil
}

// packages puts one version of the two packages where the README's apt looks.
func (r *rig) packages(ctx context.Context, version string) error {
	return r.each(func(m *machine, name string) error {
		if _, err := m.sh(ctx, "rm -f /root/*.deb"); err != nil {
			return err
		}
		found, err := filepath.Glob(filepath.Join(r.o.build, "acceptance", version, name+"_*.deb"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%d packages %s of the version called %s", len(found), name, version)
		}
		body, err := os.ReadFile(found[0])
		if err != nil {
			return err
		}
		return m.write("/root/"+filepath.Base(found[0]), string(body), 0o644)
	})
}

// installed is a package's version on a machine.
func (m *machine) installed(ctx context.Context, name string) (string, error) {
	out, err := m.sh(ctx, "dpkg-query -W -f '${Version}' "+name)
	return strings.TrimSpace(out), err
}
