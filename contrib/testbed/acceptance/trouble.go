package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// together: while another job has the GPU, each user submits two; then they run.
func (r *rig) together(ctx context.Context) string {
	first := must(r.submit(ctx, "bob", "alexnet", "sbatch --gres=gpu:1 job.sh"))
	jobs := must(r.shareAll(ctx, 1))
	seen := must(r.see(ctx, jobs))
	must(r.ended(ctx, append(jobs, first), 3*time.Minute))
	for i := 0; i < len(jobs); i += 2 {
		check(r.overlapped(ctx, jobs[i], jobs[i+1]))
	}
	// A job that joins the other a moment later shares as well; at least one pair starts at once.
	pairs, worst := 0, 0.0
	check(until(ctx, 30*time.Second, func() error {
		groups, err := r.groups(ctx)
		if err != nil {
			return err
		}
		pairs, worst = 0, 0
		for i := 0; i < len(jobs); i += 2 {
			for _, g := range groups {
				if g.has(jobs[i].id) && g.has(jobs[i+1].id) && g.Complete {
					pairs++
					worst = max(worst, g.SkewS)
				}
			}
		}
		if pairs == 0 {
			return errors.New("no user's jobs were a group")
		}
		return nil
	}))
	if worst > 1 {
		fail("%.2f s lay between two starts of a group", worst)
	}
	return fmt.Sprintf("both users' jobs shared the GPU, %d groups at once with %.0f ms between first and last start at most; %s", pairs, 1000*worst, seen)
}

// overlapped fails where two jobs weren't on the GPU at the same time.
func (r *rig) overlapped(ctx context.Context, a, b job) error {
	fa, err := r.look(ctx, a.id)
	if err != nil {
		return err
	}
	fb, err := r.look(ctx, b.id)
	if err != nil {
		return err
	}
	// Slurm's times are of equal length: the order of the text is theirs.
	if fa["StartTime"] >= fb["EndTime"] || fb["StartTime"] >= fa["EndTime"] {
		return fmt.Errorf("%s's jobs %s and %s ran one after the other", a.user, a.id, b.id)
	}
	return nil
}

func (g *group) has(id string) bool {
	for _, m := range g.Members {
		if m.Ref == id {
			return true
		}
	}
	return false
}

// see is the README's way for a user to see partners, while the job has some.
func (r *rig) see(ctx context.Context, jobs []job) (string, error) {
	b, err := r.readme.take("user", "see")
	if err != nil {
		return "", err
	}
	why := ""
	err = until(ctx, 90*time.Second, func() error {
		var last error
		for _, j := range jobs {
			out, err := r.head.as(ctx, j.user, j.app, "JOB="+j.id+"\n"+b.text)
			switch {
			case err != nil:
				last = err
			case !strings.Contains(out, "together") || !strings.Contains(out, "with "):
				last = fmt.Errorf("nothing of partners: %s", tail(out))
			default:
				_, comment, _ := strings.Cut(out, "slurmbridge: ")
				why, _, _ = strings.Cut(comment, "\n")
				why = j.user + " reads “" + strings.Join(strings.Fields(why), " ") + "”"
				return nil
			}
		}
		return last
	})
	return why, err
}

// all waits for jobs' end, and fails where one was started twice or a record is missing.
func (r *rig) all(ctx context.Context, jobs []job, before int) {
	if again := must(r.ended(ctx, jobs, 5*time.Minute)); again > 0 {
		fail("%d jobs were started more than once", again)
	}
	check(r.records(ctx, before+len(jobs)))
}

func (r *rig) restart(ctx context.Context) string {
	before := must(r.recorded(ctx))
	jobs := must(r.queued(ctx, 2))
	must(r.head.sh(ctx, "systemctl restart slurmbridge\nsystemctl is-active slurmbridge"))
	check(because("after the restart", r.gated(ctx, jobs, 1)))
	must(r.node.sh(ctx, "systemctl restart gpuprof"))
	must(r.head.sh(ctx, "systemctl reload slurmbridge\nsleep 2\nsystemctl is-active slurmbridge"))
	r.all(ctx, jobs, before)
	return fmt.Sprintf("%d jobs ran once each, %[1]d records", len(jobs))
}

func (r *rig) killed(ctx context.Context) string {
	before := must(r.recorded(ctx))
	jobs := must(r.queued(ctx, 1))
	check(r.each(func(m *machine, unit string) error {
		_, err := m.sh(ctx, "systemctl kill -s KILL "+unit)
		return err
	}))
	at := time.Now()
	check(r.each(func(m *machine, unit string) error {
		return because(unit+" is not back", until(ctx, 30*time.Second, func() error {
			_, err := m.sh(ctx, "systemctl is-active "+unit+"\n[ \"$(systemctl show -P NRestarts "+unit+")\" -ge 1 ]")
			return err
		}))
	}))
	back := time.Since(at)
	r.all(ctx, jobs, before)
	return fmt.Sprintf("both daemons back after %.0f s, %d jobs ran once each, all recorded", back.Seconds(), len(jobs))
}

// hangs: the daemon lives and does nothing. Jobs may then wait no longer than its lease
// and one pass of Slurm's over its queue.
func (r *rig) hangs(ctx context.Context) string {
	before := must(r.recorded(ctx))
	must(r.head.sh(ctx, "systemctl kill -s STOP slurmbridge"))
	jobs, took, err := r.withoutDaemon(ctx)
	_, cont := r.head.sh(ctx, "systemctl kill -s CONT slurmbridge")
	check(errors.Join(err, cont))
	check(because("afterwards", until(ctx, 30*time.Second, func() error {
		_, err := r.head.sh(ctx, "curl -fsS http://head:9797/-/ready")
		return err
	})))
	// Their records waited on the node.
	check(r.records(ctx, before+len(jobs)))
	return fmt.Sprintf("started %.0f s after its submission (lease 60 s), all %d ran; then their records arrive", took.Seconds(), len(jobs))
}

// withoutDaemon submits jobs, which the gate holds, and waits for their end; it returns
// how long it took until the first started.
func (r *rig) withoutDaemon(ctx context.Context) (jobs []job, took time.Duration, err error) {
	if jobs, err = r.shareAll(ctx, 1); err != nil {
		return nil, 0, err
	}
	at := time.Now()
	f, err := r.look(ctx, jobs[0].id)
	if err != nil {
		return nil, 0, err
	}
	if f["Dependency"] == "(null)" {
		return nil, 0, errors.New("the job isn't gated")
	}
	if err := until(ctx, 2*time.Minute, func() error {
		for _, j := range jobs {
			if f, err := r.look(ctx, j.id); err != nil || f["JobState"] != "PENDING" {
				took = time.Since(at)
				return err
			}
		}
		return errors.New("nothing has started")
	}); err != nil {
		return nil, 0, err
	}
	_, err = r.ended(ctx, jobs, 3*time.Minute)
	return jobs, took, err
}

// plug pulls the node's network cable, or puts it back.
func plug(ctx context.Context, state string) error {
	_, err := call(ctx, "", "ip", "link", "set", "vb-"+nodeName, state)
	return err
}

func (r *rig) unplugged(ctx context.Context) string {
	before := must(r.recorded(ctx))
	j := must(r.share(ctx, "alice", "gromacs"))
	check(until(ctx, 20*time.Second, func() error {
		_, err := r.node.sh(ctx, "pgrep -x gpusim")
		return because("the job doesn't run yet", err)
	}))
	check(plug(ctx, "down"))
	if _, err := r.node.sh(ctx, "! curl -fsS -m 2 http://head:9797/-/healthy && pgrep -x gpusim"); err != nil {
		check(errors.Join(because("the cable isn't out, or the job is over", err), plug(ctx, "up")))
	}
	// The job takes ten seconds: it ends meanwhile, and its end can't be reported. Slurm
	// holds the node's epilog back until slurmctld has heard of the end.
	at := time.Now()
	err := until(ctx, 25*time.Second, func() error {
		_, err := r.node.sh(ctx, "! pgrep -x gpusim")
		return because("the job still runs", err)
	})
	away := time.Since(at)
	check(errors.Join(err, plug(ctx, "up")))
	at = time.Now()
	r.all(ctx, []job{j}, before)
	return fmt.Sprintf("away for %.0f s; recorded %.0f s after it was back; the job ran once", away.Seconds(), time.Since(at).Seconds())
}

// isDown waits until Slurm has given the node up.
func (r *rig) isDown(ctx context.Context) error {
	return until(ctx, 3*time.Minute, func() error {
		out, err := r.head.sh(ctx, "sinfo -h -o %T")
		if err == nil && !strings.HasPrefix(out, "down") {
			err = errors.New("the node is " + strings.TrimSpace(out))
		}
		return err
	})
}

// down: no job runs on the node when the cable goes. (Of four tries with jobs that ended
// behind the cable and were requeued meanwhile one ended with a node that Slurm 22.05 had
// drained, "Duplicate jobid": a race of Slurm's own, which this test leaves out.)
func (r *rig) down(ctx context.Context) string {
	before := must(r.recorded(ctx))
	check(r.idle(ctx, time.Minute))
	check(plug(ctx, "down"))
	at := time.Now()
	isDown := r.isDown(ctx)
	jobs, err := r.shareAll(ctx, 1)
	away := time.Since(at)
	check(errors.Join(isDown, err, plug(ctx, "up")))
	r.all(ctx, jobs, before)
	return fmt.Sprintf("away for %.0f s; %d jobs of meanwhile ran once each, all recorded", away.Seconds(), len(jobs))
}

// power: the node's processes are gone at once, and with them its /run.
func (r *rig) power(ctx context.Context) string {
	jobs := must(r.queued(ctx, 1))
	check(r.node.cut(ctx))
	at := time.Now()
	check(r.isDown(ctx))
	check(r.node.boot(ctx, bridge, r.o.inside))
	away := time.Since(at)
	again := must(r.ended(ctx, jobs, 8*time.Minute))
	if again == 0 {
		fail("no job was running when the power went")
	}
	check(r.idle(ctx, time.Minute))
	return fmt.Sprintf("away for %.0f s; all %d jobs completed, %d of them requeued by Slurm", away.Seconds(), len(jobs), again)
}

func (r *rig) upgrade(ctx context.Context) string {
	before := must(r.recorded(ctx))
	check(r.packages(ctx, "new"))
	jobs := must(r.queued(ctx, 2))
	must(r.follow(ctx, "controller", "upgrade"))
	must(r.follow(ctx, "nodes", "upgrade"))
	if r.new = must(r.head.installed(ctx, "slurmbridge")); r.new == r.old {
		fail("the version is the same as before")
	}
	// The daemons that run are the new ones, with the settings of before.
	must(r.head.sh(ctx, "systemctl is-active slurmbridge\ngrep -qx 'mode: active' /etc/slurmbridge/slurmbridge.yaml\n"+newer("slurmbridge")))
	must(r.node.sh(ctx, "systemctl is-active gpuprof\ngrep -q 'head:9797' /etc/slurmbridge/gpuprof.yaml\n"+newer("gpuprof")))
	r.all(ctx, jobs, before)
	return fmt.Sprintf("%s to %s; %d jobs ran once each, all recorded", r.old, r.new, len(jobs))
}

// newer fails where a unit's process runs another program than the one that is installed.
func newer(unit string) string {
	return "case $(readlink /proc/$(systemctl show -P MainPID " + unit + ")/exe) in *deleted*) echo the old program still runs; exit 1;; esac"
}

func (r *rig) troubleshoot(ctx context.Context) string {
	jobs := must(r.queued(ctx, 2))
	out := must(r.follow(ctx, "controller", "troubleshoot"))
	must(r.ended(ctx, jobs, 5*time.Minute))
	return lastLine(out)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func (r *rig) remove(ctx context.Context) string {
	jobs := must(r.queued(ctx, 2))
	out := must(r.follow(ctx, "controller", "remove"))
	said := ""
	for line := range strings.Lines(out) {
		if strings.Contains(line, "ungated") {
			said = strings.TrimSpace(line)
		}
	}
	if said == "" {
		fail("removal doesn't say that jobs were let go: %s", tail(out))
	}
	// Slurm notices at its next pass over the queue that the gate is gone.
	check(until(ctx, time.Minute, func() error {
		for _, j := range jobs {
			f, err := r.look(ctx, j.id)
			if err != nil {
				return err
			}
			if f["Dependency"] != "(null)" {
				return fmt.Errorf("job %s still waits for %s", j.id, f["Dependency"])
			}
		}
		return nil
	}))
	check(r.sameConf())
	must(r.follow(ctx, "nodes", "remove"))
	must(r.ended(ctx, jobs, 5*time.Minute))
	check(r.idle(ctx, 30*time.Second))
	check(because("afterwards", r.whole(ctx)))
	check(r.idle(ctx, 30*time.Second))
	check(r.both(ctx, `left=$(find /etc /usr /var/lib /var/spool /run -xdev \( -name '*slurmbridge*' -o -name '*gpuprof*' \) \
	! -path '/etc/systemd/system/gpuprof.service.d*' ! -path '/var/lib/dpkg/*' ! -path '/run/systemd/*' ! -path '/run/slurmbridge*')
[ -z "$left" ] || { echo "left: $left"; exit 1; }
! systemctl is-active slurmbridge gpuprof`))
	return said + "; a plain job runs"
}
