package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// steps are the checks, in their order: from two bare machines to a cluster that shares
// its GPU, through trouble, and back to a plain one.
func (r *rig) steps() []step {
	return []step{
		{"machines boot with systemd as process 1", true, r.bootAll},
		{"plain Slurm hands out a whole GPU", true, r.plain},
		{"README: apt installs; nothing starts by itself", true, r.install},
		{"README: doctor names what is missing", true, r.doctor},
		{"README: Slurm restarts, the agent starts", true, r.start},
		{"README: shadow mode decides and changes nothing", true, r.shadow},
		{"README: two users share; records arrive, profiles are learned", true, r.learn},
		{"README: the receipt", false, r.receipt},
		{"README: active after a reload", true, r.active},
		{"README: groups start together; users see their partners", false, r.together},
		{"README: metrics of controller and node", false, r.metrics},
		{"restart and reload lose nothing", false, r.restart},
		{"daemon killed: systemd brings it back, jobs go on", false, r.killed},
		{"daemon hangs: a waiting job runs without it", false, r.hangs},
		{"node unplugged while a job ends: its record arrives", false, r.unplugged},
		{"node unplugged until it is down, and back: jobs wait", false, r.down},
		{"node loses power while jobs run, and boots: they run again", false, r.power},
		{"README: upgrade while jobs wait", false, r.upgrade},
		{"README: troubleshooting; open lets jobs go", false, r.troubleshoot},
		{"README: removal leaves a plain working cluster", false, r.remove},
		{"every command of the README was run", false, r.complete},
	}
}

func (r *rig) bootAll(ctx context.Context) string {
	check(r.prepare())
	for _, m := range r.machines() {
		check(m.boot(ctx, bridge, r.o.inside))
		check(m.settle(ctx))
	}
	check(r.both(ctx, "[ \"$(cat /proc/1/comm)\" = systemd ]"))
	check(until(ctx, 20*time.Second, func() error {
		_, err := r.node.sh(ctx, "ip -4 addr show host0 | grep -q "+nodeAddr+"\ngetent hosts head")
		return err
	}))
	return strings.TrimSpace(must(r.head.sh(ctx, ". /etc/os-release; echo \"$PRETTY_NAME, $(systemctl --version | head -n 1)\"")))
}

// idle waits until the node is up and has no job.
func (r *rig) idle(ctx context.Context, limit time.Duration) error {
	return until(ctx, limit, func() error {
		out, err := r.head.sh(ctx, "sinfo -h -o '%T %E'")
		if err == nil && !strings.HasPrefix(out, "idle ") {
			err = fmt.Errorf("the node is %s", strings.TrimSpace(out))
		}
		return err
	})
}

// whole runs a job on a whole GPU, as on any cluster.
func (r *rig) whole(ctx context.Context) error {
	j, err := r.submit(ctx, "alice", "gromacs", "sbatch --gres=gpu:1 job.sh")
	if err == nil {
		_, err = r.ended(ctx, []job{j}, time.Minute)
	}
	return err
}

func (r *rig) plain(ctx context.Context) string {
	// MUNGE's key is the same on both: they were made from one root folder.
	must(r.head.sh(ctx, "systemctl enable --now munge slurmctld"))
	must(r.node.sh(ctx, "systemctl enable --now munge slurmd"))
	check(r.idle(ctx, 30*time.Second))
	check(r.whole(ctx))
	return strings.TrimSpace(must(r.head.sh(ctx, "scontrol --version")))
}

func (r *rig) install(ctx context.Context) string {
	check(r.packages(ctx, "old"))
	must(r.follow(ctx, "controller", "install"))
	must(r.follow(ctx, "nodes", "install"))
	check(r.each(func(m *machine, unit string) error {
		_, err := m.sh(ctx, "! systemctl is-active "+unit+" && ! systemctl is-enabled "+unit)
		return because(unit+" was started", err)
	}))
	r.old = must(r.head.installed(ctx, "slurmbridge"))
	return "version " + r.old
}

func (r *rig) doctor(ctx context.Context) string {
	out, err := r.follow(ctx, "controller", "doctor")
	if err == nil {
		fail("nothing is missing on a plain cluster: %s", tail(out))
	}
	done := must(r.obey(ctx))
	if len(done) < 5 {
		fail("doctor had lines for %v only: %s", done, tail(out))
	}
	return fmt.Sprintf("%d lines written: %s", len(done), strings.Join(done, ", "))
}

func (r *rig) start(ctx context.Context) string {
	must(r.follow(ctx, "controller", "restart"))
	must(r.follow(ctx, "nodes", "start"))
	check(r.idle(ctx, 30*time.Second))
	must(r.node.sh(ctx, "systemctl is-active gpuprof && systemctl is-enabled gpuprof"))
	// What could not be seen before the restart.
	more := must(r.obey(ctx))
	if len(more) == 0 {
		return ""
	}
	check(r.both(ctx, "systemctl try-restart slurmctld slurmd"))
	check(r.idle(ctx, 30*time.Second))
	return "then also " + strings.Join(more, ", ")
}

func (r *rig) shadow(ctx context.Context) string {
	out := must(r.follow(ctx, "controller", "shadow"))
	must(r.head.sh(ctx, "systemctl is-active slurmbridge && systemctl is-enabled slurmbridge && [ ! -e /run/slurmbridge/gate ]"))
	if !strings.Contains(out, "shadow") {
		fail("shadow mode is not mentioned: %s", tail(out))
	}
	return "doctor has no errors and no warnings"
}

func (r *rig) learn(ctx context.Context) string {
	jobs := must(r.shareAll(ctx, 1))
	must(r.ended(ctx, jobs, 3*time.Minute))
	for _, j := range jobs {
		if f := must(r.look(ctx, j.id)); f["Dependency"] != "(null)" || f["AdminComment"] != "" {
			fail("shadow mode changed job %s: %v", j.id, f)
		}
	}
	check(r.records(ctx, len(jobs)))
	out := must(r.head.sh(ctx, "slurmbridge profiles list"))
	if n := strings.Count(out, "alice") + strings.Count(out, "bob"); n < len(jobs) {
		fail("not every application is known: %s", out)
	}
	return fmt.Sprintf("%d runs, each user's own profiles", len(jobs))
}

func (r *rig) receipt(ctx context.Context) string {
	out := must(r.follow(ctx, "controller", "receipt"))
	_, err := r.head.sh(ctx, "curl -fsS http://head:9797/ | grep -qi '<html'")
	check(because("the page", err))
	if !strings.Contains(out, "shadow") {
		fail("the receipt doesn't say that this was shadow: %s", tail(out))
	}
	return fmt.Sprintf("%d lines; the page is served", strings.Count(out, "\n"))
}

func (r *rig) active(ctx context.Context) string {
	pid := must(r.head.sh(ctx, "systemctl show -P MainPID slurmbridge"))
	must(r.follow(ctx, "controller", "active"))
	check(because("no gate", until(ctx, 20*time.Second, func() error {
		_, err := r.head.sh(ctx, "[ -s /run/slurmbridge/gate ]")
		return err
	})))
	if now := must(r.head.sh(ctx, "systemctl show -P MainPID slurmbridge")); now != pid {
		fail("a reload restarted the daemon")
	}
	return "the gate is there, the process the same"
}

func (r *rig) metrics(ctx context.Context) string {
	out := must(r.follow(ctx, "controller", "metrics"))
	for _, name := range []string{"slurmbridge_info", "slurmbridge_polls_total", "gpuprof_"} {
		if !strings.Contains(out, "\n"+name) {
			fail("no %s", name)
		}
	}
	n := must(value(out, `slurmbridge_records_total{result="new"}`))
	if n < 4 {
		fail("%v records", n)
	}
	return fmt.Sprintf("%d series, %.0f new records", strings.Count(out, "\n"), n)
}

// value is a series' value.
func value(text, series string) (float64, error) {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("no series %s", series)
}

func (r *rig) complete(context.Context) string {
	if left := r.readme.left(); len(left) > 0 {
		fail("not run: %s", strings.Join(left, ", "))
	}
	return fmt.Sprintf("%d blocks", len(r.readme.blocks))
}
