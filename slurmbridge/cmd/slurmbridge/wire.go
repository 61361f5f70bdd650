package main

import (
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
	"github.com/slurmbridge/slurmbridge/slurmbridge/archive"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// wired is the bridge with everything it stands on.
type wired struct {
	bridge  *loop.Bridge
	store   *store.Store
	journal *journal.Journal
	archive *archive.Archive
	// usedFrom is where the period begins of which the metrics count the use of GPUs.
	usedFrom time.Time
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
	j := journal.New(st.DB())
	b := &loop.Bridge{
		Slurm: cl, Apps: st, Models: st.LastCards(log), Journal: j, Runs: past(st), Beliefs: predictor,
		RetryAlone: cfg.RetryAlone, AppNames: cfg.Apps(),
		Sessions: job.Sessions{
			Names: cfg.InteractiveNames, Partitions: cfg.InteractivePartitions,
			MemMiB: float64(cfg.InteractiveMemory), MaxSlowdown: cfg.InteractiveMaxSlowdown,
		},
		Adopt: policy, IdleAfter: cfg.IdleAfter, ExtendLimit: cfg.ExtendLimit,
		PastMaxTime: cfg.ExtendPastMaxTime, Mode: job.Mode(cfg.Mode), Specs: cfg.Spec,
		Gate: gate, Metrics: m, Now: time.Now, PollEvery: cfg.Poll, Log: log,
		Planner: &plan.Planner{
			Decider: newDecider(cfg, policies, predictor),
			Partitions: job.PartitionFilter{
				Include: cfg.IncludePartitions, Exclude: cfg.ExcludePartitions,
				SharersOnly: append(slices.Clone(cfg.SharersOnly), cfg.GatePartition),
				MixAnyway:   cfg.MixedPartitions == "share",
			},
			TryMiB: float64(cfg.TryMemory), Wanted: wanted,
		},
	}
	return &wired{
		bridge: b, store: st, journal: j,
		archive: &archive.Archive{Store: st, Journal: j, Runs: past(st), TaskName: cl.TaskName},
	}, nil
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

// keep stores a record, and counts in the metrics how far apart the jobs of its group started.
func (w *wired) keep(ctx context.Context, r *gpuprof.Record, behind time.Duration, m *loop.Metrics) (bool, error) {
	isNew, skew, err := w.archive.Keep(ctx, r, behind)
	if isNew && err == nil {
		w.bridge.Wake() // which judges it
	}
	if skew >= 0 && skew < time.Hour {
		m.Skew(skew)
	}
	return isNew, err
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
			kept, err := w.archive.Tidy(ctx, last, mostBytes)
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
