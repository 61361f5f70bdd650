package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// modelsDir is the folder of the models' files.
func modelsDir(cfg *config.Config) models.Dir {
	return models.Dir(filepath.Join(filepath.Dir(cfg.Database), "models"))
}

// learns reports whether the site's own networks decide.
func learns(cfg *config.Config) bool { return decidesByNetwork(cfg) && cfg.Model == "" }

// loadMix draws a mix of the runs that ended in [from, to).
func loadMix(ctx context.Context, cfg *config.Config, st *store.Store, j *journal.Journal, from, to time.Time) (*models.Mix, error) {
	runs, err := (&history.History{Records: st, Journal: j}).Ended(ctx, from, to)
	if err != nil {
		return nil, err
	}
	past, err := j.Outcomes(ctx, to.Add(-history.KeptFor), to)
	if err != nil {
		return nil, err
	}
	nodes, err := j.Nodes(ctx, from)
	if err != nil {
		return nil, err
	}
	types := map[string]string{} // of GPUs, by node
	for i := range nodes {
		types[nodes[i].Name] = nodes[i].GPUType
	}
	card := func(r *history.Run) rlcore.GPUSpec { return cardOf(cfg, types[r.Node], r.Devices) }
	return models.Draw(from, to, runs, card, past, models.Rules{
		Objective: policy.Objective(cfg.Objective),
		Window:    cfg.Window, MaxGroup: cfg.MaxGroup, MemMargin: cfg.MemoryMargin,
		MaxDelayS: cfg.MaxDelay.Seconds(), MaxSlowdown: cfg.MaxSlowdown, Grace: cfg.Grace, Trust: cfg.Trust,
	}), nil
}

// cardOf is what the settings, or the record where they don't know it, say of a run's GPU.
func cardOf(cfg *config.Config, gpuType string, devices []gpuprof.GPU) rlcore.GPUSpec {
	if len(devices) == 0 {
		return rlcore.GPUSpec{}
	}
	g := &devices[0]
	for _, name := range []string{gpuType, g.Model} {
		if spec, ok := cfg.Card(name); ok && g.MIG == "" {
			return spec
		}
	}
	return rlcore.GPUSpec{Model: g.Model, MemMiB: g.MemMiB, PCIeMBps: g.PCIeMBps, SameUser: true}
}

// network is the network that the site's files let decide.
type network struct {
	checkpoint *dqn.Checkpoint // nil = the built-in one
	name, file string          // file is "" for the built-in one
	unusable   []error         // files that were skipped
}

// siteNetwork reads the site's own network, or if it can't be used the previous one; without
// either it is the built-in network.
func siteNetwork(dir models.Dir, aim policy.Objective) network {
	n := network{name: pretrained.BuiltInFor(aim)}
	c, err := dir.Load(aim)
	switch {
	case err != nil:
		n.unusable = append(n.unusable, err)
	case c != nil:
		n.checkpoint, n.name, n.file = c, dir.Name(), dir.Current()
		return n
	default:
		return n
	}
	switch c, err = dir.LoadPrevious(aim); {
	case err != nil:
		n.unusable = append(n.unusable, err)
	case c != nil:
		n.checkpoint, n.name, n.file = c, "site, previous", dir.Previous()
	}
	return n
}

// ownPolicy puts the site's own network in the place of the built-in one, if the settings leave the
// choice to the bridge and there is one. It returns the network's name, "" = the settings choose.
func ownPolicy(cfg *config.Config, p rlcore.Predictor, policies []rlcore.Policy, log *slog.Logger) ([]rlcore.Policy, string) {
	if !learns(cfg) {
		return policies, ""
	}
	n := siteNetwork(modelsDir(cfg), policy.Objective(cfg.Objective))
	for _, err := range n.unusable {
		log.Error("network skipped: the one before it decides", "err", err)
	}
	if n.checkpoint == nil {
		return policies, n.name
	}
	own, err := pretrained.Policy(n.checkpoint, p, n.name)
	if err != nil {
		log.Error("the site's own network can't be used", "file", n.file, "err", err)
		return policies, pretrained.BuiltInFor(policy.Objective(cfg.Objective))
	}
	if len(policies) > 0 && policies[0].Name() == pretrained.Name {
		policies = policies[1:]
	}
	return append([]rlcore.Policy{own}, policies...), n.name
}
