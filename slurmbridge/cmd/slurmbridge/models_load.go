package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
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
	past, err := j.Outcomes(ctx, to.Add(-history.KeptFor))
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

// checkpoint reads a model's network, which was trained for an objective; that of BuiltIn is
// in the program.
func checkpoint(ctx context.Context, ms *models.Register, dir models.Dir, aim policy.Objective, id int64) (*dqn.Checkpoint, error) {
	if id == models.BuiltIn {
		return pretrained.Checkpoint(aim)
	}
	m, err := ms.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	c, err := dir.CheckpointFor(aim, m.SHA256)
	if err != nil {
		return nil, fmt.Errorf("model %d: %w", id, err)
	}
	return c, nil
}

// siteModel returns the network of the model in use, or of the first of those before
// it that can be used, and its number; the one built in has number BuiltIn.
func siteModel(ctx context.Context, ms *models.Register, dir models.Dir, aim policy.Objective, log *slog.Logger) (*dqn.Checkpoint, int64, error) {
	line, err := ms.Line(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range line {
		c, err := dir.CheckpointFor(aim, line[i].SHA256)
		if err == nil {
			return c, line[i].ID, nil
		}
		log.Error("model passed over: the one before it decides", "model", line[i].ID, "err", err)
	}
	c, err := pretrained.Checkpoint(aim)
	return c, models.BuiltIn, err
}

// ownPolicy puts the site's own network in the place of the one built in, where the
// settings leave the choice to the bridge and there is one.
func ownPolicy(ctx context.Context, cfg *config.Config, ms *models.Register, p rlcore.Predictor, policies []rlcore.Policy, log *slog.Logger) []rlcore.Policy {
	if !learns(cfg) {
		return policies
	}
	out, _, err := withModel(ctx, cfg, ms, p, policies, log)
	if err != nil {
		log.Error("the site's own models can't be used", "err", err)
		return policies
	}
	return out
}

// withModel is ownPolicy with the number of the model, and the error.
func withModel(ctx context.Context, cfg *config.Config, ms *models.Register, p rlcore.Predictor, policies []rlcore.Policy, log *slog.Logger) ([]rlcore.Policy, int64, error) {
	c, id, err := siteModel(ctx, ms, modelsDir(cfg), policy.Objective(cfg.Objective), log)
	if err != nil {
		return nil, 0, err
	}
	rest := policies
	if len(rest) > 0 && rest[0].Name() == pretrained.Name {
		rest = rest[1:]
	}
	name := pretrained.BuiltInFor(policy.Objective(cfg.Objective))
	if id != models.BuiltIn {
		name = strconv.FormatInt(id, 10)
	}
	own, err := pretrained.Policy(c, p, name)
	return append([]rlcore.Policy{own}, rest...), id, err
}
