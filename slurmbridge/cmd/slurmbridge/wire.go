package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	_ "github.com/slurmbridge/slurmbridge/rlcore/lookahead" // its policy
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// wired is the bridge with everything it stands on.
type wired struct {
	bridge  *loop.Bridge
	store   *store.Store
	journal *journal.Journal
	// usedFrom is where the period begins of which the metrics count the use of GPUs.
	usedFrom time.Time
	// taskName names the job that has a number now, by Slurm; nil = not known.
	taskName func(ctx context.Context, id int64) (string, error)
}

// policyOf is the name of the configured policy: a path is that of a network for policy dqn.
func policyOf(cfg *config.Config) (name, model string) {
	if filepath.IsAbs(cfg.Policy) {
		return pretrained.Name, cfg.Policy
	}
	return cfg.Policy, ""
}

// newPolicies makes the configured policy and its fallbacks, in their order: srpt, then exclusive.
// A model that can't be used is logged and skipped: a weaker policy is better than none.
func newPolicies(cfg *config.Config, p rlcore.Predictor, log *slog.Logger) ([]rlcore.Policy, error) {
	var out []rlcore.Policy
	wanted, model := policyOf(cfg)
	for i, name := range []string{wanted, "srpt", "exclusive"} {
		if i > 0 && name == wanted {
			continue
		}
		made, err := policy.New(name, policy.Setup{Predictor: p, Seed: 1, Model: model})
		spec, known := policy.Named(wanted)
		switch {
		case err == nil:
			out = append(out, made)
		case known && spec.Live && spec.Network:
			log.Error("model can't be used: srpt decides instead", "err", fmt.Errorf("%s: %w", cfg.Where("policy"), err))
		default:
			return nil, cli.Usage(fmt.Errorf("%s: %w", cfg.Where("policy"), err))
		}
	}
	return out, nil
}

// newDecider makes what decides by the settings.
func newDecider(cfg *config.Config, policies []rlcore.Policy, p rlcore.Predictor) *rlcore.Decider {
	return &rlcore.Decider{
		Policy: policies[0], Fallback: policies[1:], Guard: rlcore.NewGuard(rlcore.Rules{
			Predictor: p, MemMargin: cfg.MemoryMargin, MaxMembers: cfg.MaxGroup,
			MaxDelayS: cfg.MaxDelay.Seconds(), MaxSlowdown: cfg.MaxSlowdown, Grace: cfg.Grace,
			ExtendLimit: cfg.ExtendLimit,
		}),
	}
}

// wire puts the bridge together on a store, which it opens once no setting can be wrong any more. m may be nil.
func wire(ctx context.Context, cfg *config.Config, log *slog.Logger, m *loop.Metrics,
	open func() (*store.Store, error),
) (*wired, error) {
	predictor := interference.New(&contention.MPS)
	policies, err := newPolicies(cfg, predictor, log)
	if err != nil {
		return nil, err
	}
	cl, err := client(cfg, m)
	if err != nil {
		return nil, err
	}
	gate := &loop.Gate{
		Slurm: cl, Name: cl.Name, Lease: cfg.Lease, Partition: cfg.GatePartition, Now: time.Now,
		File: cfg.GateFile(), ByHand: byHand(cfg, log), SharersOnly: cfg.SharersOnly,
	}
	policy := cfg.AdoptPolicy(func(name string) (uint32, bool) {
		uid, err := uidOf(name)
		return uid, err == nil
	})
	if cl.GPULimits = policy != nil; policy != nil {
		switch release, err := cl.Release(ctx); {
		case err != nil:
		case text.GivesUsedGPUs(release):
			return nil, cli.Usage(fmt.Errorf("%s: Slurm %s can't make a job of a whole GPU share, and gives GPUs in use to "+
				"others: it takes 23.11.5", cfg.Where("adopt"), release))
		case text.MistakesGPUs(release) && cfg.MixedPartitions != "share":
			return nil, cli.Usage(fmt.Errorf("%s: Slurm %s keeps nodes with shared GPUs for waiting jobs of whole GPUs: it "+
				"takes 25.05, or mixed_partitions: share", cfg.Where("adopt"), release))
		}
	}
	st, err := open()
	if err != nil {
		return nil, err
	}
	wanted, _ := policyOf(cfg)
	j, apps := journal.New(st.DB()), &recogniser{st}
	b := &loop.Bridge{
		Slurm: cl, Apps: apps, Models: apps.models(log), Journal: j, Runs: past(st), Beliefs: predictor,
		RetryAlone: cfg.RetryAlone, AppNames: cfg.Apps(),
		Sessions: job.Sessions{
			Names: cfg.InteractiveNames, Partitions: cfg.InteractivePartitions,
			MemMiB: float64(cfg.InteractiveMemory), MaxSlowdown: cfg.InteractiveMaxSlowdown,
		},
		Adopt: policy, IdleAfter: cfg.IdleAfter, ExtendLimit: cfg.ExtendLimit,
		PastMaxTime: cfg.ExtendPastMaxTime, Mode: job.Mode(cfg.Mode), Card: cfg.Card,
		Gate: gate, Metrics: m, Now: time.Now, PollEvery: cfg.Poll, Log: log,
		Planner: &plan.Planner{
			Decider: newDecider(cfg, policies, predictor),
			Partitions: job.PartitionFilter{
				Include: cfg.IncludePartitions, Exclude: cfg.ExcludePartitions,
				SharersOnly: append(slices.Clone(cfg.SharersOnly), cfg.GatePartition),
				MixAnyway:   cfg.MixedPartitions == "share",
			},
			TryMiB: float64(cfg.TryMemory), Room: true, Wanted: wanted,
		},
	}
	return &wired{bridge: b, store: st, journal: j, taskName: cl.TaskName}, nil
}

// recogniser identifies applications by their scripts and looks up their profiles: an application's
// own, otherwise one made from its relatives of other sizes.
type recogniser struct{ store *store.Store }

// models returns a function that reads what records said of GPUs, or else what it read before.
func (r *recogniser) models(log *slog.Logger) func(context.Context) (map[job.GPUAddr]string, map[string]bool) {
	var cards map[job.GPUAddr]string
	var noLimits map[string]bool
	return func(ctx context.Context) (map[job.GPUAddr]string, map[string]bool) {
		switch now, no, err := r.store.Cards(ctx); {
		case err == nil:
			cards, noLimits = now, no
		case ctx.Err() == nil:
			log.Warn("GPU models", "err", err)
		}
		return cards, noLimits
	}
}

func (r *recogniser) Identify(ctx context.Context, j *job.Job, t job.Terms, script []byte) (string, error) {
	a := appid.Identify(&appid.Job{Named: t.App, Name: j.Name, Script: script, Args: j.Note.Args, Dir: j.WorkDir})
	if script == nil && t.App == "" {
		// Recognised before a restart.
		known, err := r.store.AppOf(ctx, j.Ref, j.User)
		if err != nil || known == "" {
			return "", err
		}
		a.Key = known
	}
	// Without a name, too: an earlier job of this number may have been something.
	return a.Key, errors.Join(r.store.SetApp(ctx, j.Ref, j.User, a.Key), r.store.SetFamily(ctx, j.User, a))
}

func (r *recogniser) Profile(ctx context.Context, user, key, model string) (*rlcore.Profile, error) {
	p, _, err := lookUp(ctx, r.store, user, key, model)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return p, err
}

// lookUp returns the profile of a user's application on a card, else one made of its relatives.
func lookUp(ctx context.Context, st *store.Store, user, app, card string) (p *rlcore.Profile, unseen bool, err error) {
	p, err = st.Lookup(ctx, user, app, card)
	if unseen = errors.Is(err, store.ErrNotFound); unseen {
		p, err = st.Relative(ctx, user, app, card)
	}
	return p, unseen, err
}

// byHand returns the users and partitions that keep hand-written shares. Unknown users are left
// out: they may exist on another day.
func byHand(cfg *config.Config, log *slog.Logger) loop.ByHand {
	out := loop.ByHand{Only: cfg.IncludePartitions, Leave: slices.Clone(cfg.ExcludePartitions)}
	for _, name := range cfg.HandShares {
		if p, is := strings.CutPrefix(name, "partition:"); is {
			out.Leave = append(out.Leave, p)
			continue
		}
		uid, err := uidOf(name)
		if err != nil {
			log.Warn("hand_shares names an unknown user", "err", err)
			continue
		}
		out.Users = append(out.Users, uid)
	}
	return out
}

// recordUsers returns the users that may send records: root, the bridge's own user and record_users.
func recordUsers(cfg *config.Config) ([]uint32, error) {
	allowed := []uint32{0, uint32(os.Geteuid())}
	for _, name := range cfg.RecordUsers {
		uid, err := uidOf(name)
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("%s: %w", cfg.Where("record_users"), err))
		}
		allowed = append(allowed, uid)
	}
	return allowed, nil
}

func uidOf(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid), err
}

// keep stores a record and counts in metrics what it shows of the job's group. The record's times
// stay in its node's clock, which is behind ours by the given time: they identify the record, and a
// group's members share that clock. They are corrected where they are compared with times of ours.
func (w *wired) keep(ctx context.Context, r *gpuprof.Record, behind time.Duration, m *loop.Metrics) (bool, error) {
	r.ClockBehindS = behind.Seconds()
	if r.ArrayJobID == 0 {
		// No release of Slurm so far lets a node's prolog know that a job is an array's task.
		name, err := past(w.store).TaskName(ctx, r.JobID, r.ControllerTime(r.Start), r.ControllerTime(r.End))
		if err != nil {
			return false, err
		}
		if array, task, is := strings.Cut(name, "_"); is {
			r.ArrayJobID, _ = strconv.ParseInt(array, 10, 64)
			r.ArrayTaskID, _ = strconv.ParseInt(task, 10, 64)
		}
	}
	// The application is the one that was recognised while the job waited, "" = none was.
	app, err := w.store.AppOf(ctx, r.Ref(), r.User)
	if err != nil {
		return false, err
	}
	known, err := w.store.Family(ctx, r.User, app)
	if err != nil {
		return false, err
	}
	var params []string
	for _, s := range known.Sizes {
		params = append(params, s.Name+"="+strconv.FormatFloat(s.Value, 'g', -1, 64))
	}
	r.App, r.Params = cmp.Or(known.Name, app), strings.Join(params, "; ")
	isNew, err := w.store.AddRecord(ctx, r, app)
	if err != nil || !isNew {
		return false, err
	}
	skew, complete, err := w.journal.Started(ctx, r.Ref(), r.Start)
	switch {
	case errors.Is(err, journal.ErrNotFound):
	case err != nil:
		return true, err
	case complete && skew < time.Hour:
		m.Skew(skew)
	}
	w.bridge.Wake() // which judges it
	return true, nil
}

// fitEvery is how often records become parts of their runs where nothing is learned, and metrics show what GPUs were
// used for.
const fitEvery = time.Minute

// showUsage shows in the metrics what GPUs were used for.
func (w *wired) showUsage(ctx context.Context, now time.Time) error {
	st := w.bridge.Status()
	hidden := st == nil || st.Snap == nil || st.Snap.PrivateJobs || st.Snap.PrivateUsage
	load := func(from time.Time) (*usage.Report, error) {
		r, err := loadUsage(ctx, w.store, now,
			usage.Query{Period: history.Period{From: from, To: now}, By: usage.Account})
		if errors.Is(err, httpapi.ErrNoUsage) {
			return nil, nil
		}
		return r, err
	}
	day, err := load(now.Add(-24 * time.Hour))
	if err != nil {
		return err
	}
	w.bridge.Metrics.Waits(day, hidden)
	if !w.usedFrom.IsZero() {
		r, err := load(w.usedFrom)
		if err != nil {
			return err
		}
		w.bridge.Metrics.Used(r, false, hidden)
	}
	if now.Sub(w.usedFrom) > 2*24*time.Hour { // or nothing was counted yet
		w.usedFrom = now.Add(-24 * time.Hour)
		w.bridge.Metrics.Used(day, true, hidden)
	}
	return nil
}

// usage sums up runs, including runs that ended a few seconds ago.
func (w *wired) usage(ctx context.Context, q usage.Query) (*usage.Report, error) {
	return loadUsage(ctx, w.store, time.Now(), q)
}

// tidy joins records with runs, and once an hour removes what is old, and what there is too much of.
func (w *wired) tidy(ctx context.Context, mostBytes int64, log *slog.Logger) error {
	tick := time.NewTimer(0)
	defer tick.Stop()
	var last time.Time
	for {
		// Access rules are unknown before the first poll.
		tick.Reset(map[bool]time.Duration{true: fitEvery, false: 10 * time.Second}[w.bridge.Status() != nil])
		err := w.showUsage(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			log.Warn("footprints of runs", "err", err)
		}
		if time.Since(last) >= time.Hour {
			last = time.Now()
			kept, err := w.tidyOnce(ctx, last, mostBytes)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				log.Warn("tidy", "err", err)
			case kept < history.KeptFor:
				log.Warn("the database has reached its size, and what is older was removed: see database_mib", "kept_days",
					math.Round(kept.Hours()/24))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// leastKept is how much of the past is kept however large it is.
const leastKept = 24 * time.Hour

// tidyOnce removes what is older than is kept, and where the rest takes more than so many bytes
// ever younger parts of it, of the footprints last. It returns how much of the past is left.
func (w *wired) tidyOnce(ctx context.Context, now time.Time, mostBytes int64) (kept time.Duration, err error) {
	short := usage.KeptFor
	for kept = history.KeptFor; ; kept = max(kept*3/4, leastKept) {
		before := now.Add(-kept)
		if err := errors.Join(w.store.Tidy(ctx, before), w.journal.Forget(ctx, before),
			past(w.store).Forget(ctx, before),
			history.ForgetFootprints(ctx, w.store.DB(), now.Add(-short))); err != nil {
			return kept, err
		}
		size, err := database.Size(ctx, w.store.DB())
		switch {
		case err != nil || size <= mostBytes:
			return kept, err
		case kept > leastKept:
		case short > leastKept:
			short = max(short*3/4, leastKept)
		default:
			return kept, nil
		}
	}
}

// asker identifies users by their credentials; allowed are the users with access to everything.
func asker(how credential.Method, allowed []uint32) *httpapi.Asker {
	turns := &credential.Turns{Method: how}
	return &httpapi.Asker{
		Header: how.Header(), Decode: turns.Decode, Hint: how.Hint,
		Trusted: func(uid uint32) bool { return slices.Contains(allowed, uid) },
		Name: func(uid uint32) string {
			u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
			if err != nil {
				return ""
			}
			return u.Username
		},
	}
}

// memoryLimit is what a user's job was given of its GPU's memory when its group was decided.
func (w *wired) memoryLimit(ctx context.Context, ref, user string) (none httpapi.MemoryReport, err error) {
	id, isNumber := strconv.ParseInt(ref, 10, 64)
	if isNumber == nil {
		// A node knows an array task by its number only.
		now := time.Now()
		if ref, err = past(w.store).TaskName(ctx, id, now, now); err != nil {
			return none, err
		}
	}
	m, err := w.journal.MemberOf(ctx, ref)
	if err == nil && m == nil && isNumber == nil && w.taskName != nil {
		// A task that starts has a number that no poll has shown yet.
		if ref, err = w.taskName(ctx, id); err != nil {
			return none, nil //nolint:nilerr // Slurm doesn't answer: nothing is known of the job
		}
		m, err = w.journal.MemberOf(ctx, ref)
	}
	switch {
	case err != nil:
		return none, err
	case m == nil:
		return httpapi.MemoryReport{ByHand: true}, nil
	case m.User != user || m.State.Final():
		return none, nil
	}
	return httpapi.MemoryReport{MiB: cmp.Or(m.ProcessMiB, m.MemMiB)}, nil
}
