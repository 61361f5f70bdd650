package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// inventory is the site's: the controller runs Ansible, and reaches the node by ssh. sharers_only is what doctor wants
// on Slurm 22.05.
func inventory(mode string) string {
	return `[controller]
head ansible_connection=local
[nodes]
gpu1
[all:vars]
ansible_user=root
slurmbridge_packages=/root/packages
slurmbridge_settings={"mode": "` + mode + `", "lease": "90s", "sharers_only": ["gpu"]}
`
}

// included is a site's slurm.conf that includes the fragment, and leaves GresTypes to it.
var included = strings.Replace(plainConf, "GresTypes=gpu\n", "", 1) + "Include /etc/slurm/slurmbridge.conf\n"

// slurmConf writes slurm.conf of both machines.
func (r *rig) slurmConf(text string) {
	r.head.write("/etc/slurm/slurm.conf", text, 0o644)
	r.sameConf()
}

// prepareAnsible gives the controller the role and a key for the node, and both a Slurm that knows nothing of
// slurmbridge.
func (r *rig) prepareAnsible() {
	must(call(r.ctx, "cp", "-rL", "contrib/ansible", filepath.Join(r.head.dir, "root")))
	r.sh(r.head, "[ -e .ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519\n"+
		"echo 'StrictHostKeyChecking accept-new' >.ssh/config")
	r.node.write("/root/.ssh/authorized_keys", r.head.read("/root/.ssh/id_ed25519.pub"), 0o600)
	r.head.write("/root/inventory", inventory("shadow"), 0o600)
	r.folder("old")
	r.head.write("/etc/slurm/gres.conf", "Name=gpu Type=titanxp File=/dev/nvidia0\n", 0o644)
	r.slurmConf(plainConf)
	r.sh(r.head, "systemctl restart slurmctld")
	r.sh(r.node, "systemctl restart slurmd")
	r.nodeIs(30*time.Second, idle)
}

// folder puts one version of both packages into a folder of the machine that runs Ansible.
func (r *rig) folder(version string) {
	r.sh(r.head, "rm -rf packages")
	for _, m := range r.machines() {
		for _, deb := range must(filepath.Glob(filepath.Join(programs, "acceptance", version, r.unit(m)+"_*.deb"))) {
			r.head.write("/root/packages/"+filepath.Base(deb), string(must(os.ReadFile(deb))), 0o644)
		}
	}
}

// playbook calls the role, and returns what it said and how many tasks changed something.
func (r *rig) playbook(args string) (said string, changes int) {
	out := r.sh(r.head, "ansible-playbook -i inventory ansible/slurmbridge.yml "+args)
	return out, must(changed(out))
}

// quiet fails where one more call changes anything.
func (r *rig) quiet(args string) {
	if out, n := r.playbook(args); n != 0 {
		fail("one more call makes %d changes: %s", n, tail(out))
	}
}

var recap = regexp.MustCompile(`(?m)^\S+ +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0 `)

// changed sums up the changes on both machines, as ansible-playbook's last lines have them.
func changed(out string) (n int, err error) {
	found := recap.FindAllStringSubmatch(out, -1)
	for _, m := range found {
		i, err := strconv.Atoi(m[1])
		if err != nil {
			return 0, err
		}
		n += i
	}
	if len(found) != 2 {
		return 0, fmt.Errorf("it didn't end well on two machines: %s", tail(out))
	}
	return n, nil
}

// playbooks are the checks of the Ansible role: from a plain cluster to one that shares, and back.
func (r *rig) playbooks() []step {
	const exist = "dpkg-query -W slurmbridge gpuprof 2>&1 || true; find /etc/slurm -type f | xargs md5sum; ls -a " +
		"/etc/slurmbridge 2>&1 || true"
	return []step{
		{"playbook: check mode changes nothing", true, func() string {
			r.prepareAnsible()
			before := r.sh(r.head, exist) + r.sh(r.node, exist)
			_, n := r.playbook("--check")
			if now := r.sh(r.head, exist) + r.sh(r.node, exist); n == 0 || now != before {
				fail("%d changes are announced; before it was\n%s\nnow it is\n%s", n, before, now)
			}
			return fmt.Sprintf("%s; %d changes are announced", strings.SplitN(r.sh(r.head, "ansible --version"), "\n", 2)[0], n)
		}},
		{"playbook: packages, settings, the fragment; slurm.conf is left alone", true, func() string {
			out := r.follow("controller", "playbook")
			must(changed(out))
			for _, m := range r.machines() {
				if m.read("/etc/slurm/slurm.conf") != plainConf {
					fail("slurm.conf of %s was changed", m.name)
				}
			}
			r.both(`grep -qx 'Prolog=/usr/lib/slurmbridge/prolog' /etc/slurm/slurmbridge.conf
if systemctl is-active UNIT || systemctl is-enabled UNIT; then echo UNIT was started; exit 1; fi`)
			r.sh(r.head, `grep -qx 'mode: "shadow"' /etc/slurmbridge/slurmbridge.yaml && cmp /etc/slurm/job_submit.lua /usr/share/slurmbridge/job_submit.lua`)
			r.sh(r.node, `grep -qx 'controller: "http://head:9797"' /etc/slurmbridge/gpuprof.yaml /etc/slurmbridge/node.yaml`)
			for _, want := range []string{
				"slurm.conf lacks this line", "(the last line of both counts)",
				"knows no shares of a GPU",
			} {
				if !strings.Contains(out, want) {
					fail("it doesn't say %q: %s", want, tail(out))
				}
			}
			r.quiet("")
			return "a second call changes nothing"
		}},
		{"playbook: the fragment is included, Slurm's daemons restart, ours start", true, func() string {
			r.slurmConf(included)
			r.playbook("-e slurmbridge_restart=true")
			done := r.obey()
			out, _ := r.playbook("-e slurmbridge_restart=true")
			r.both("systemctl is-active UNIT && systemctl is-enabled UNIT")
			r.nodeIs(30*time.Second, idle)
			r.ended([]job{r.share("alice", "gromacs")}, time.Minute)
			r.records(1)
			if !strings.Contains(out, "the bridge is in shadow mode") || strings.Contains(out, "error ") {
				fail("doctor still finds: %s", tail(out))
			}
			r.quiet("")
			return "of doctor's lines were left " + strings.Join(done, ", ")
		}},
		{"playbook: upgrade and another setting", false, func() string {
			r.folder("new")
			r.head.write("/root/inventory", inventory("active"), 0o600)
			_, n := r.playbook("")
			if r.installed() != "999" {
				fail("the version is %s", r.installed())
			}
			r.sh(r.head, `grep -qx 'mode: "active"' /etc/slurmbridge/slurmbridge.yaml`)
			r.until(20*time.Second, func() { r.sh(r.head, "grep -q ^job= /run/slurmbridge/gate || { echo no gate; exit 1; }") })
			r.both(`case $(readlink /proc/$(systemctl show -P MainPID UNIT)/exe) in *deleted*) echo the old program still runs; exit 1;; esac`)
			r.quiet("")
			return fmt.Sprintf("%d changes", n)
		}},
		{"playbook: a setting that doesn't exist is refused before anything is written", false, func() string {
			out, err := r.try(r.head,
				`ansible-playbook -i inventory ansible/slurmbridge.yml -e '{"slurmbridge_settings": {"mod": "active"}}'`)
			if err == nil || !strings.Contains(out, "slurmbridge.yaml has no setting mod") {
				fail("it said %s", tail(out))
			}
			r.sh(r.head, `grep -qx 'mode: "active"' /etc/slurmbridge/slurmbridge.yaml`)
			return ""
		}},
		{"playbook: removal leaves a plain working cluster", false, func() string {
			jobs := r.queued(1)
			out, err := r.try(r.head, "ansible-playbook -i inventory ansible/slurmbridge.yml -e slurmbridge_state=absent")
			if err == nil || !strings.Contains(out, "take that line out") {
				fail("it removes what slurm.conf names: %s", tail(out))
			}
			r.ended(jobs, 5*time.Minute) // they hold shares, which the plain slurm.conf doesn't have
			r.slurmConf(plainConf)
			r.playbook("-e slurmbridge_state=absent")
			r.plain()
			r.quiet("-e slurmbridge_state=absent")
			return "a plain job runs"
		}},
	}
}

// plain fails where something of slurmbridge is left on the machines, or where Slurm doesn't run jobs.
func (r *rig) plain() {
	r.nodeIs(30*time.Second, idle)
	r.whole()
	r.nodeIs(30*time.Second, idle)
	r.both(`left=$(find /etc /usr /var/lib /var/spool /var/cache /run -xdev \( -name '*slurmbridge*' -o -name '*gpuprof*' \) \
	! -path '/etc/systemd/system/gpuprof.service.d*' ! -path '/var/lib/dpkg/*' ! -path '/run/systemd/*' \
	! -path '/run/slurmbridge*')
[ -z "$left" ] || { echo "left: $left"; exit 1; }
! systemctl is-active slurmbridge gpuprof`)
}
