// Package e2e runs the bridge against real Slurm daemons.
package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	_ "modernc.org/sqlite"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm"
	"github.com/slurmbridge/slurmbridge/slurmbridge/wake"
)

// Users that jobs run as: every Debian has them. From 25.11 on Slurm takes the name nobody
// for uid 99, so that user can't be named to it.
const (
	ann = "games"
	bob = "news"
)

// small is an application of which three fit on a GPU.
const small = "m3000g30"

// TestMain turns the test binary into the bridge where it is started under its name: a process of its own, as
// SlurmUser, that can be killed.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == cluster.BridgeDaemon {
		if err := runBridge(os.Args[1], os.Args[2], os.Args[3]); err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// apps knows profiles by name: app=m4000g30 needs 4,000 MiB and 30 % of the GPU for a minute, m4000g30d5 for 5 s. (A
// limit of one minute, --time=1, has no room then, and such a job doesn't share.)
type apps struct{}

func (apps) Identify(_ context.Context, _ *job.Job, t job.Terms, _ []byte) (string, error) {
	return t.App, nil
}

func (apps) Profile(_ context.Context, _, key, _ string) (*rlcore.Profile, error) {
	mem, gpu, seconds := 0.0, 0.0, 60.0
	if n, _ := fmt.Sscanf(key, "m%fg%fd%f", &mem, &gpu, &seconds); n < 2 {
		return nil, nil
	}
	return &rlcore.Profile{
		App: key, DurationS: seconds, PeriodS: seconds, Runs: 1,
		Series: []rlcore.Use{{GPU: gpu / 100, Core: gpu / 100, MemMiB: mem}},
	}, nil
}

type sum struct{}

func (sum) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	s := 0.0
	for _, p := range members {
		s += p.Mean().GPU
	}
	for i := range dst {
		dst[i].Slowdown = max(1, s)
	}
}

type most struct{}

func (most) Name() string { return "most" }
func (most) Score(dst []float64, _ *rlcore.Window, combos []rlcore.Combo) {
	for i, c := range combos {
		dst[i] = float64(c.Len())
	}
}

// settings are what a test's bridge is told.
type settings struct {
	Lease   time.Duration
	Mode    job.Mode
	Sharing job.Sharing
	// GatePartition is the gate's own; "" = it has none.
	GatePartition string
	// SharersOnly are the partitions where only shares are handed out; nil: jobs share where whole GPUs are, too.
	SharersOnly []string
	// MemLimits: MPS holds jobs to a part of the memory.
	MemLimits bool
	// Adopt: jobs of a whole GPU share by a rule, or would; "" = no rule.
	Adopt job.Mode
}

// runBridge is the daemon's heart with a policy that packs as much as it may. It dies at a step.
func runBridge(dir, told, fault string) error {
	var o settings
	if err := json.Unmarshal([]byte(told), &o); err != nil {
		return err
	}
	db, err := database.Open(context.Background(), filepath.Join(dir, "run", "bridge.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx := context.Background()
	j := journal.New(db)
	cl := &slurm.Client{Conf: filepath.Join(dir, "slurm.conf")}
	if err := cl.Open(); err != nil {
		return err
	}
	b := &loop.Bridge{
		Slurm: cl, Apps: apps{}, Journal: j, Mode: o.Mode, PollEvery: 10 * time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Specs: func(typ string) (rlcore.GPUSpec, bool) {
			card := rlcore.TitanXp
			card.MemLimits = o.MemLimits
			if typ == "h100" {
				card.MemMiB = 80_000
			} else if of, is := job.InstanceOf(typ); is {
				card.MemMiB = 900 * float64(of.GB)
			}
			return card, true
		},
		Sessions: job.Sessions{MemMiB: 4096, MaxSlowdown: 1.3},
		Gate: &loop.Gate{
			Slurm: cl, Lease: o.Lease, Sharing: o.Sharing, File: filepath.Join(dir, "run", "gate"), Now: time.Now,
			Partition: o.GatePartition,
		},
		Planner: &plan.Planner{
			Decider: &rlcore.Decider{
				Policy: most{}, Guard: rlcore.NewGuard(rlcore.Rules{Predictor: sum{}, MaxMembers: 3}), M: 5,
			},
			Partitions: job.PartitionFilter{SharersOnly: o.SharersOnly, MixAnyway: o.SharersOnly == nil},
		},
	}
	b.Gate.SharersOnly = o.SharersOnly
	if o.Adopt != "" {
		cl.GPULimits = true
		rule := adopt.Rule{Partitions: []string{slurmtest.Partition, "each"}, MaxSlowdown: adopt.DefaultMaxSlowdown}
		b.Adopt = &adopt.Policy{
			Rules: []adopt.Rule{rule}, Active: o.Adopt == job.Active, Percent: 100, Delay: time.Minute,
		}
	}
	if b.Mode == job.Shadow {
		b.Gate.File = ""
	}
	b.Fault = func(step string) {
		if step == fault {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	go func() { _ = wake.File(ctx, filepath.Join(dir, "run", "wake"), b.Wake) }()
	return b.Run(ctx, nil)
}

// rig is a cluster with a bridge.
type rig struct {
	*world
	settings settings
}

type options struct {
	slurmtest.Options
	settings
	quiet bool // no bridge yet
	// site is a job_submit.lua of the site's, which finds what slurmbridge's own script returns in M; "" = that is all.
	site string
}

// wakes makes the end of each job wake the bridge.
func wakes(c *slurmtest.Cluster) error {
	c.Options.EpilogSlurmctld = c.Path("epilogctld")
	script := fmt.Sprintf("#!/bin/sh\necho end >> %s\nexit 0\n", c.WakeFile)
	return os.WriteFile(c.Options.EpilogSlurmctld, []byte(script), 0o755)
}

func newRig(t *testing.T, o options) *rig {
	t.Helper()
	o.Lease, o.Mode = cmp.Or(o.Lease, 20*time.Second), cmp.Or(o.Mode, job.Active)
	o.settings.Sharing = job.Sharing(cmp.Or(o.Options.Sharing, "mps"))
	o.Lua, o.Scheduler = ours, cmp.Or(o.Scheduler, slurmtest.Prompt)
	if o.site != "" {
		text := string(must.Get(os.ReadFile(ours))(t))
		o.Files = map[string]string{
			"slurmbridge.lua": strings.ReplaceAll(text, "/run/slurmbridge/", "DIR/run/"),
			"job_submit.lua":  "local M = dofile(\"DIR/slurmbridge.lua\")\n" + o.site + "\nreturn slurm.SUCCESS\n",
		}
	}
	if o.Prepare == nil {
		o.Prepare = wakes
	}
	o.Extra = append(o.Extra, "JobRequeue=1")
	s := cluster.New(cluster.Setup{})
	s.Cluster = slurmtest.New(t, o.Options)
	t.Cleanup(s.Stop)
	r := &rig{&world{s, stage{s.Cluster, t}}, o.settings}
	if !o.quiet {
		r.start()
	}
	return r
}

// in is the rig in a test's part.
func (r *rig) in(t *testing.T) *rig {
	own := *r.world
	own.t = t
	return &rig{&own, r.settings}
}

// start starts the bridge as SlurmUser and waits until its gate is there.
func (r *rig) start() {
	r.t.Helper()
	r.startOnly("")
	if r.settings.Mode != job.Shadow {
		r.until("the bridge makes a gate", func() bool { return r.gate() != "" })
	}
}

// startOnly starts a bridge that dies at a step, "" = at none.
func (r *rig) startOnly(step string) {
	r.t.Helper()
	told := must.Get(json.Marshal(r.settings))(r.t)
	// The test binary lies where only root may look, and outside another root.
	if _, err := os.Stat(r.Bin(cluster.BridgeDaemon)); err != nil {
		self := must.Get(os.Executable())(r.t)
		must.Get(exec.Command("install", "-D", self, r.Bin(cluster.BridgeDaemon)).Output())(r.t)
	}
	must.OK(r.t, r.Spawn(cluster.BridgeDaemon, "slurm", r.Dir, string(told), step))
}

// diesAt starts a bridge that dies at a step, and waits until it has.
func (r *rig) diesAt(step string) {
	r.t.Helper()
	r.startOnly(step)
	r.until("the bridge comes to step "+step, func() bool { return !r.Daemon(cluster.BridgeDaemon).Alive() })
}

// kill ends the bridge as a power cut would.
func (r *rig) kill() { r.Kill(cluster.BridgeDaemon) }

// gateText is what the gate file says, "" = there is none.
func (r *rig) gateText() string {
	text, _ := os.ReadFile(r.GateFile)
	return string(text)
}

// gate reads the job in the gate file, "" = none or stale.
func (r *rig) gate() string {
	var id, expires int64
	if _, err := fmt.Sscanf(r.gateText(), "job=%d\nexpires=%d", &id, &expires); err != nil ||
		time.Now().Unix() >= expires {
		return ""
	}
	return strconv.FormatInt(id, 10)
}

// submit submits a shared job that writes down which GPU it sees and sleeps.
func (r *rig) submit(user, app string, sleep float64, args ...string) string {
	r.t.Helper()
	if app != "" {
		args = append([]string{"--comment=app=" + app}, args...)
	}
	args = append([]string{"--gres=gpu:shared"}, args...)
	return r.any(user, sleep, args...)
}

func (r *rig) any(user string, sleep float64, args ...string) string {
	r.t.Helper()
	script := fmt.Sprintf("echo $CUDA_VISIBLE_DEVICES > %s/$SLURM_JOB_ID.gpu\nsleep %g\n", r.Path("out"), sleep)
	return must.Get(r.Submit(context.Background(), user, script, args...))(r.t)
}

// started is when a job started, in whole seconds.
func (r *rig) started(id string) time.Time { return r.when("StartTime", id) }

// span is from when to when a job ran, in whole seconds.
func (r *rig) span(id string) [2]time.Time {
	r.t.Helper()
	return [2]time.Time{r.started(id), r.when("EndTime", id)}
}

func (r *rig) when(field, id string) time.Time {
	r.t.Helper()
	return must.Get(time.ParseInLocation("2006-01-02T15:04:05", r.job(id)[field], time.Local))(r.t)
}
