package main

import (
	"context"
	"errors"
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

func (r *rig) bootAll(ctx context.Context) (string, error) {
	if err := r.prepare(); err != nil {
		return "", err
	}
	for _, m := range []*machine{r.head, r.node} {
		if err := m.boot(ctx, bridge, r.o.inside); err != nil {
			return "", err
		}
		if err := m.settle(ctx); err != nil {
			return "", err
		}
	}
	if err := r.both(ctx, "[ \"$(cat /proc/1/comm)\" = systemd ]"); err != nil {
		return "", err
	}
	if err := until(ctx, 20*time.Second, func() error {
		_, err := r.node.sh(ctx, "ip -4 addr show host0 | grep -q "+nodeAddr+"\ngetent hosts head")
		return err
	}); err != nil {
		return "", err
	}
	out, err := r.head.sh(ctx, ". /etc/os-release; echo \"$PRETTY_NAME, $(systemctl --version | head -n 1)\"")
	return strings.TrimSpace(out), err
}

// idle waits until the node is there and has no job.
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

func (r *rig) plain(ctx context.Context) (string, error) {
	// MUNGE's key is the same on both: they were made from one root folder.
	if _, err := r.head.sh(ctx, "systemctl enable --now munge slurmctld"); err != nil {
		return "", err
	}
	if _, err := r.node.sh(ctx, "systemctl enable --now munge slurmd"); err != nil {
		return "", err
	}
	if err := r.idle(ctx, 30*time.Second); err != nil {
		return "", err
	}
	if err := r.whole(ctx); err != nil {
		return "", err
	}
	out, err := r.head.sh(ctx, "scontrol --version")
	return strings.TrimSpace(out), err
}

func (r *rig) install(ctx context.Context) (string, error) {
	if err := r.packages("old"); err != nil {
		return "", err
	}
	if _, err := r.follow(ctx, "controller", "install"); err != nil {
		return "", err
	}
	if _, err := r.follow(ctx, "nodes", "install"); err != nil {
		return "", err
	}
	if _, err := r.head.sh(ctx, "! systemctl is-active slurmbridge && ! systemctl is-enabled slurmbridge"); err != nil {
		return "", fmt.Errorf("slurmbridge was started: %w", err)
	}
	if _, err := r.node.sh(ctx, "! systemctl is-active gpuprof && ! systemctl is-enabled gpuprof"); err != nil {
		return "", fmt.Errorf("gpuprof was started: %w", err)
	}
	var err error
	r.old, err = r.head.installed(ctx, "slurmbridge")
	return "version " + r.old, err
}

func (r *rig) doctor(ctx context.Context) (string, error) {
	out, err := r.follow(ctx, "controller", "doctor")
	if err == nil {
		return "", fmt.Errorf("nothing is missing on a plain cluster: %s", tail(out))
	}
	done, err := r.obey(ctx)
	if err != nil {
		return "", err
	}
	if len(done) < 5 {
		return "", fmt.Errorf("doctor had lines for %v only: %s", done, tail(out))
	}
	return fmt.Sprintf("%d lines written: %s", len(done), strings.Join(done, ", ")), nil
}

func (r *rig) start(ctx context.Context) (string, error) {
	if _, err := r.follow(ctx, "controller", "restart"); err != nil {
		return "", err
	}
	if _, err := r.follow(ctx, "nodes", "start"); err != nil {
		return "", err
	}
	if err := r.idle(ctx, 30*time.Second); err != nil {
		return "", err
	}
	if _, err := r.node.sh(ctx, "systemctl is-active gpuprof && systemctl is-enabled gpuprof"); err != nil {
		return "", err
	}
	// What could not be seen before the restart.
	more, err := r.obey(ctx)
	if err != nil || len(more) == 0 {
		return "", err
	}
	if err := r.both(ctx, "systemctl try-restart slurmctld slurmd"); err != nil {
		return "", err
	}
	return "then also " + strings.Join(more, ", "), r.idle(ctx, 30*time.Second)
}

func (r *rig) shadow(ctx context.Context) (string, error) {
	out, err := r.follow(ctx, "controller", "shadow")
	if err != nil {
		return "", err
	}
	if _, err := r.head.sh(ctx, "systemctl is-active slurmbridge && systemctl is-enabled slurmbridge && [ ! -e /run/slurmbridge/gate ]"); err != nil {
		return "", err
	}
	if !strings.Contains(out, "shadow") {
		return "", fmt.Errorf("nothing is said of shadow mode: %s", tail(out))
	}
	return "doctor has no errors and no warnings", nil
}

func (r *rig) learn(ctx context.Context) (string, error) {
	jobs, err := r.shareAll(ctx, 1)
	if err != nil {
		return "", err
	}
	if _, err := r.ended(ctx, jobs, 3*time.Minute); err != nil {
		return "", err
	}
	for _, j := range jobs {
		f, err := r.look(ctx, j.id)
		if err != nil {
			return "", err
		}
		if f["Dependency"] != "(null)" || f["AdminComment"] != "" {
			return "", fmt.Errorf("shadow mode changed job %s: %v", j.id, f)
		}
	}
	if err := r.records(ctx, len(jobs)); err != nil {
		return "", err
	}
	out, err := r.head.sh(ctx, "slurmbridge profiles list")
	if err != nil {
		return "", err
	}
	if n := strings.Count(out, "alice") + strings.Count(out, "bob"); n < len(jobs) {
		return "", fmt.Errorf("not every application is known: %s", out)
	}
	return fmt.Sprintf("%d runs, each user's own profiles", len(jobs)), nil
}

func (r *rig) receipt(ctx context.Context) (string, error) {
	out, err := r.follow(ctx, "controller", "receipt")
	if err != nil {
		return "", err
	}
	if _, err := r.head.sh(ctx, "curl -fsS http://head:9797/ | grep -qi '<html'"); err != nil {
		return "", fmt.Errorf("the page: %w", err)
	}
	if !strings.Contains(out, "shadow") {
		return "", fmt.Errorf("the receipt doesn't say that this was shadow: %s", tail(out))
	}
	return fmt.Sprintf("%d lines; the page is served", strings.Count(out, "\n")), nil
}

func (r *rig) active(ctx context.Context) (string, error) {
	pid, err := r.head.sh(ctx, "systemctl show -P MainPID slurmbridge")
	if err != nil {
		return "", err
	}
	if _, err := r.follow(ctx, "controller", "active"); err != nil {
		return "", err
	}
	if err := until(ctx, 20*time.Second, func() error {
		_, err := r.head.sh(ctx, "[ -s /run/slurmbridge/gate ]")
		return err
	}); err != nil {
		return "", fmt.Errorf("no gate: %w", err)
	}
	now, err := r.head.sh(ctx, "systemctl show -P MainPID slurmbridge")
	if err == nil && now != pid {
		err = errors.New("a reload restarted the daemon")
	}
	return "the gate is there, the process the same", err
}

func (r *rig) metrics(ctx context.Context) (string, error) {
	out, err := r.follow(ctx, "controller", "metrics")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"slurmbridge_info", "slurmbridge_looks_total", "gpuprof_"} {
		if !strings.Contains(out, "\n"+name) {
			return "", fmt.Errorf("no %s", name)
		}
	}
	n, err := value(out, `slurmbridge_records_total{result="new"}`)
	if err == nil && n < 4 {
		err = fmt.Errorf("%v records", n)
	}
	return fmt.Sprintf("%d series, %.0f new records", strings.Count(out, "\n"), n), err
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

func (r *rig) complete(context.Context) (string, error) {
	if left := r.readme.left(); len(left) > 0 {
		return "", fmt.Errorf("not run: %s", strings.Join(left, ", "))
	}
	return fmt.Sprintf("%d blocks", len(r.readme.blocks)), nil
}
