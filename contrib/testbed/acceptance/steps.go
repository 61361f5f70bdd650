package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// steps are the checks, in their order: two bare machines, what the pages say, and the playbook.
func (r *rig) steps() []step {
	if r.o.playbook {
		return append(r.bare(), r.playbooks()...)
	}
	return slices.Concat(r.bare(), r.pages(), r.playbooks(), []step{
		{"every command of the pages was run", false, func() string {
			if left := r.manual.left(); len(left) > 0 {
				fail("not run: %s", strings.Join(left, ", "))
			}
			return fmt.Sprintf("%d blocks", len(r.manual.blocks))
		}},
	})
}

// bare boots two machines with a plain Slurm.
func (r *rig) bare() []step {
	return []step{
		{"machines boot with systemd as process 1", true, func() string {
			r.prepare()
			for _, m := range r.machines() {
				r.boot(m)
				r.makeUsers(m)
			}
			r.both("[ \"$(cat /proc/1/comm)\" = systemd ]")
			r.until(20*time.Second, func() { r.sh(r.node, "ip -4 addr show host0 | grep -q "+nodeAddr+"\ngetent hosts head") })
			return strings.TrimSpace(r.sh(r.head,
				". /etc/os-release; echo \"$PRETTY_NAME, $(systemctl --version | head -n 1)\""))
		}},
		{"plain Slurm hands out a whole GPU", true, func() string {
			// MUNGE's key is the same on both: they were made from one root folder.
			r.sh(r.head, "systemctl enable --now munge slurmctld")
			r.sh(r.node, "systemctl enable --now munge slurmd")
			r.nodeIs(30*time.Second, idle)
			r.whole()
			return strings.TrimSpace(r.sh(r.head, "scontrol --version"))
		}},
	}
}

// pages lead to a cluster that shares its GPU, through trouble, and back to a plain one.
func (r *rig) pages() []step {
	return []step{
		{"pages: apt installs; nothing starts by itself", true, func() string {
			r.packages("old")
			r.follow("controller", "install")
			r.follow("nodes", "install")
			r.both("if systemctl is-active UNIT || systemctl is-enabled UNIT; then echo UNIT was started; exit 1; fi")
			r.old = r.installed()
			return "version " + r.old
		}},
		{"pages: doctor names what is missing", true, func() string {
			out, err := r.followed("controller", "doctor")
			if err == nil {
				fail("nothing is missing on a plain cluster: %s", tail(out))
			}
			done := r.obey()
			if len(done) < 5 {
				fail("doctor had lines for %v only: %s", done, tail(out))
			}
			return fmt.Sprintf("%d lines written: %s", len(done), strings.Join(done, ", "))
		}},
		{"pages: Slurm restarts, the agent starts", true, func() string {
			r.follow("nodes", "start")
			r.nodeIs(30*time.Second, idle)
			r.follow("controller", "restart")
			r.nodeIs(30*time.Second, idle)
			r.sh(r.node, "systemctl is-active gpuprof && systemctl is-enabled gpuprof")
			// What could not be seen before the restart.
			more := r.obey()
			if len(more) == 0 {
				return ""
			}
			r.sh(r.node, "systemctl restart slurmd")
			r.sh(r.head, "systemctl restart slurmctld")
			r.nodeIs(30*time.Second, idle)
			return "then also " + strings.Join(more, ", ")
		}},
		{"pages: shadow mode decides and changes nothing", true, func() string {
			out := r.follow("controller", "shadow")
			r.sh(r.head, "systemctl is-active slurmbridge && systemctl is-enabled slurmbridge && ! grep -q ^job= "+
				"/run/slurmbridge/gate")
			if !strings.Contains(out, "shadow") {
				fail("shadow mode is not mentioned: %s", tail(out))
			}
			return "doctor has no errors and no warnings"
		}},
		{"pages: two users share; records arrive, profiles are learned", true, func() string {
			jobs := r.shareAll(1)
			r.ended(jobs, 3*time.Minute)
			for _, j := range jobs {
				if f := r.fields(j.id); f["Dependency"] != "(null)" || f["AdminComment"] != "" {
					fail("shadow mode changed job %s: %v", j.id, f)
				}
			}
			r.records(len(jobs))
			out := r.sh(r.head, "slurmbridge profiles list")
			if n := strings.Count(out, "alice") + strings.Count(out, "bob"); n < len(jobs) {
				fail("not every application is known: %s", out)
			}
			return fmt.Sprintf("%d runs, each user's own profiles", len(jobs))
		}},
		{"pages: the receipt", false, func() string {
			out := r.follow("controller", "receipt")
			r.sh(r.head, "curl -fsS http://head:9797/ | grep -qi '<html'")
			if !strings.Contains(out, "shadow") {
				fail("the receipt doesn't say that this was shadow: %s", tail(out))
			}
			return fmt.Sprintf("%d lines; the page is served", strings.Count(out, "\n"))
		}},
		{"pages: active after a reload", true, func() string {
			pid := r.sh(r.head, "systemctl show -P MainPID slurmbridge")
			r.follow("controller", "active")
			r.until(20*time.Second, func() { r.sh(r.head, "grep -q ^job= /run/slurmbridge/gate || { echo no gate; exit 1; }") })
			if r.sh(r.head, "systemctl show -P MainPID slurmbridge") != pid {
				fail("a reload restarted the daemon")
			}
			return "the gate is there, the process the same"
		}},
		{"pages: groups start together; users see their partners", false, func() string {
			// While another job has the GPU, each user submits two; then they run.
			first := r.submit("bob", "alexnet", "sbatch --gres=gpu:1 job.sh")
			jobs := r.shareAll(1)
			seen := r.see(jobs)
			r.ended(append(jobs, first), 3*time.Minute)
			for i := 0; i < len(jobs); i += 2 {
				// Slurm's times are of equal length: the order of the text is theirs.
				a, b := r.fields(jobs[i].id), r.fields(jobs[i+1].id)
				if a["StartTime"] >= b["EndTime"] || b["StartTime"] >= a["EndTime"] {
					fail("%s's jobs %s and %s ran one after the other", jobs[i].user, jobs[i].id, jobs[i+1].id)
				}
			}
			// A job that joins the other a moment later shares as well; at least one pair starts at once.
			pairs, worst := 0, 0.0
			r.until(30*time.Second, func() {
				if pairs, worst = r.groups(jobs); pairs == 0 {
					fail("no user's jobs were a group")
				}
			})
			if worst > 1 {
				fail("%.2f s lay between two starts of a group", worst)
			}
			return fmt.Sprintf("both users' jobs shared the GPU, %d groups at once with %.0f ms between first and last start "+
				"at most; %s", pairs, 1000*worst, seen)
		}},
		{"pages: metrics of controller and node", false, func() string {
			out := r.follow("controller", "metrics")
			for _, name := range []string{"slurmbridge_info", "slurmbridge_polls_total", "gpuprof_"} {
				if !strings.Contains(out, "\n"+name) {
					fail("no %s", name)
				}
			}
			n := 0
			if m := regexp.MustCompile(`(?m)^slurmbridge_records_total\{result="new"\} (\d+)`).FindStringSubmatch(out); m != nil {
				n = must(strconv.Atoi(m[1]))
			}
			if n < 4 {
				fail("%d records", n)
			}
			return fmt.Sprintf("%d series, %d new records", strings.Count(out, "\n"), n)
		}},
		{"restart and reload lose nothing", false, func() string {
			before, jobs := r.recorded(), r.queued(2)
			r.sh(r.head, "systemctl restart slurmbridge\nsystemctl is-active slurmbridge")
			r.gated(jobs, 1)
			r.sh(r.node, "systemctl restart gpuprof")
			r.sh(r.head, "systemctl reload slurmbridge\nsleep 2\nsystemctl is-active slurmbridge")
			r.all(jobs, before)
			return fmt.Sprintf("%d jobs ran once each, %[1]d records", len(jobs))
		}},
		{"daemon killed: systemd brings it back, jobs go on", false, func() string {
			before, jobs := r.recorded(), r.queued(1)
			r.both("systemctl kill -s KILL UNIT")
			at := time.Now()
			r.until(30*time.Second, func() {
				r.both("systemctl is-active UNIT && [ \"$(systemctl show -P NRestarts UNIT)\" -ge 1 ] || { echo UNIT is not " +
					"back; exit 1; }")
			})
			back := time.Since(at)
			r.all(jobs, before)
			return fmt.Sprintf("both daemons back after %.0f s, %d jobs ran once each, all recorded", back.Seconds(), len(jobs))
		}},
		{"node unplugged while a job ends: its record arrives", false, func() string {
			before, j := r.recorded(), r.share("alice", "gromacs")
			r.until(20*time.Second, func() { r.sh(r.node, "pgrep -x gpusim || { echo the job does not run yet; exit 1; }") })
			away := r.unplugged(func() {
				r.sh(r.node, "! curl -fsS -m 2 http://head:9797/-/healthy && pgrep -x gpusim || { echo the cable is not out, or "+
					"the job is over; exit 1; }")
				// The job takes ten seconds: it ends meanwhile, and its end can't be reported. Slurm
				// holds the node's epilog back until slurmctld has heard of the end.
				r.until(25*time.Second, func() { r.sh(r.node, "! pgrep -x gpusim || { echo the job still runs; exit 1; }") })
			})
			at := time.Now()
			r.all([]job{j}, before)
			return fmt.Sprintf("away for %.0f s; recorded %.0f s after it was back; the job ran once", away.Seconds(),
				time.Since(at).Seconds())
		}},
		{"node unplugged until it is down, and back: jobs wait", false, func() string {
			// No job runs on the node when the cable goes. (Of four tries with jobs that ended
			// behind the cable and were requeued meanwhile one ended with a node that Slurm 22.05 had
			// drained, "Duplicate jobid": a race of Slurm's own, which this test leaves out.)
			before := r.recorded()
			r.nodeIs(time.Minute, idle)
			var jobs []job
			away := r.unplugged(func() {
				r.nodeIs(3*time.Minute, down)
				jobs = r.shareAll(1)
			})
			r.all(jobs, before)
			return fmt.Sprintf("away for %.0f s; %d jobs of meanwhile ran once each, all recorded", away.Seconds(), len(jobs))
		}},
		{"node loses power while jobs run, and boots: they run again", false, func() string {
			// The node's processes are gone at once, and with them its /run.
			jobs := r.queued(1)
			r.cut(r.node)
			at := time.Now()
			r.nodeIs(3*time.Minute, down)
			r.boot(r.node)
			away := time.Since(at)
			again := r.ended(jobs, 8*time.Minute)
			if again == 0 {
				fail("no job was running when the power went")
			}
			r.nodeIs(time.Minute, idle)
			return fmt.Sprintf("away for %.0f s; all %d jobs completed, %d of them requeued by Slurm", away.Seconds(), len(jobs),
				again)
		}},
		{"pages: upgrade while jobs wait", false, func() string {
			before := r.recorded()
			r.packages("new")
			jobs := r.queued(2)
			r.follow("controller", "upgrade")
			r.follow("nodes", "upgrade")
			if r.new = r.installed(); r.new == r.old {
				fail("the version is the same as before")
			}
			// The daemons that run are the new ones, with the settings of before.
			r.sh(r.head, "grep -qx 'mode: active' /etc/slurmbridge/slurmbridge.yaml")
			r.sh(r.node, "grep -q 'head:9797' /etc/slurmbridge/gpuprof.yaml")
			r.both("systemctl is-active UNIT\ncase $(readlink /proc/$(systemctl show -P MainPID UNIT)/exe) in *deleted*) " +
				"echo the old program still runs; exit 1;; esac")
			r.all(jobs, before)
			return fmt.Sprintf("%s to %s; %d jobs ran once each, all recorded", r.old, r.new, len(jobs))
		}},
		{"pages: troubleshooting; open lets jobs go", false, func() string {
			jobs := r.queued(2)
			out := strings.TrimSpace(r.follow("controller", "troubleshoot"))
			r.ended(jobs, 5*time.Minute)
			return out[strings.LastIndexByte(out, '\n')+1:]
		}},
		{"pages: removal leaves a plain working cluster", false, func() string {
			jobs := r.queued(2)
			out := r.follow("controller", "remove")
			said := strings.TrimSpace(regexp.MustCompile(`(?m)^.*ungated.*$`).FindString(out))
			if said == "" {
				fail("removal doesn't say that jobs were let go: %s", tail(out))
			}
			// Slurm notices at its next pass over the queue that the gate is gone.
			r.until(time.Minute, func() {
				for _, j := range jobs {
					if waits := r.fields(j.id)["Dependency"]; waits != "(null)" {
						fail("job %s still waits for %s", j.id, waits)
					}
				}
			})
			r.sameConf()
			r.follow("nodes", "remove")
			r.ended(jobs, 5*time.Minute)
			r.plain()
			return said + "; a plain job runs"
		}},
	}
}
