package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
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

// mixLoader gathers what a mix is drawn from.
type mixLoader struct {
	cfg      *config.Config
	store    *store.Store
	outcomes map[int64]*history.Outcome // by run
	seen     map[string][]*journal.Ran  // by ref
	types    map[string]string          // of GPUs, by node
	profiles *receiptLoader
}

// atATime is how much of the past is read at once: records are large.
const atATime = 6 * time.Hour

// loadMix draws a mix of the runs that ended in [from, to).
func loadMix(ctx context.Context, cfg *config.Config, st *store.Store, j *journal.Journal, from, to time.Time) (*models.Mix, error) {
	past, err := j.Outcomes(ctx, to.Add(-keepFor))
	if err != nil {
		return nil, err
	}
	l := &mixLoader{
		cfg: cfg, store: st, outcomes: map[int64]*history.Outcome{}, seen: map[string][]*journal.Ran{}, types: map[string]string{},
		profiles: &receiptLoader{cfg: cfg, store: st, profiles: map[[2]string]*rlcore.Profile{}},
	}
	for i := range past {
		l.outcomes[past[i].Run] = &past[i]
	}
	// A look shows a while after its end that a job is gone.
	seen, err := j.Over(ctx, from, to.Add(time.Hour), mostJobs)
	if err != nil {
		return nil, err
	}
	for i := range seen {
		l.seen[seen[i].Ref] = append(l.seen[seen[i].Ref], &seen[i])
	}
	nodes, err := j.Nodes(ctx, from)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		l.types[nodes[i].Name] = nodes[i].GPUType
	}
	var ran []models.Ran
	for at := from; at.Before(to); at = at.Add(atATime) {
		end := at.Add(atATime)
		if end.After(to) {
			end = to
		}
		runs, err := st.Ended(ctx, at, end)
		if err != nil {
			return nil, err
		}
		for i := range runs {
			r, err := l.ran(ctx, &runs[i])
			if err != nil {
				return nil, err
			}
			ran = append(ran, r)
		}
	}
	return models.Draw(from, to, ran, past, models.Rules{
		Window: cfg.Window, MaxGroup: cfg.MaxGroup, MemMargin: cfg.MemoryMargin, MaxPassOver: cfg.MaxPassOver,
		MaxDelayS: cfg.MaxDelay.Seconds(), MaxSlowdown: cfg.MaxSlowdown, Trust: cfg.Trust,
	}), nil
}

// ran is a record with what else is known of the run.
func (l *mixLoader) ran(ctx context.Context, k *store.Run) (models.Ran, error) {
	rec := &k.Record
	// Looks are timed by the controller's clock.
	behind := time.Duration(rec.ClockBehindS * float64(time.Second))
	r := models.Ran{
		Ref: rec.Ref(), User: rec.User, Terms: job.ParseTerms(rec.Comment), Start: rec.Start.Add(behind), End: rec.End.Add(behind),
		Node: rec.Node, GPUs: indexesOf(rec.GPUs), Whole: !rec.Shared, Outcome: l.outcomes[k.ID],
	}
	if len(rec.GPUs) > 0 {
		r.Card = l.card(rec.Node, &rec.GPUs[0])
	}
	for _, s := range l.seen[r.Ref] {
		if s.Node == r.Node && s.Start.Sub(r.Start).Abs() < clocksAgree {
			r.Arrive = s.Ready
			break
		}
	}
	var err error
	r.Profile, err = l.profiles.profile(ctx, rec.User, k.App)
	return r, err
}

// card is what the settings, or the record where they don't know it, say of a GPU.
func (l *mixLoader) card(node string, g *gpuprof.GPU) rlcore.GPUSpec {
	if spec, ok := l.cfg.Card(l.types[node]); ok && g.MIG == "" {
		return spec
	}
	if spec, ok := l.cfg.Card(g.Model); ok && g.MIG == "" {
		return spec
	}
	return rlcore.GPUSpec{Model: g.Model, MemMiB: g.MemMiB, PCIeMBps: g.PCIeMBps, SameUser: true}
}

// checkpoint reads a model's network; that of BuiltIn is in the program.
func checkpoint(ctx context.Context, ms *models.Register, dir models.Dir, id int64) (*dqn.Checkpoint, error) {
	if id == models.BuiltIn {
		return pretrained.Checkpoint()
	}
	m, err := ms.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	c, err := dir.Checkpoint(m.SHA256)
	if err != nil {
		return nil, fmt.Errorf("model %d: %w", id, err)
	}
	return c, nil
}

// siteModel returns the network of the model in use, or of the first of those before
// it that can be used, and its number; the one built in has number BuiltIn.
func siteModel(ctx context.Context, ms *models.Register, dir models.Dir, log *slog.Logger) (*dqn.Checkpoint, int64, error) {
	line, err := ms.Line(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range line {
		c, err := dir.Checkpoint(line[i].SHA256)
		if err == nil {
			return c, line[i].ID, nil
		}
		log.Error("model passed over: the one before it decides", "model", line[i].ID, "err", err)
	}
	c, err := pretrained.Checkpoint()
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
	c, id, err := siteModel(ctx, ms, modelsDir(cfg), log)
	if err != nil {
		return nil, 0, err
	}
	rest := policies
	if len(rest) > 0 && rest[0].Name() == pretrained.Name {
		rest = rest[1:]
	}
	name := pretrained.BuiltIn
	if id != models.BuiltIn {
		name = strconv.FormatInt(id, 10)
	}
	own, err := pretrained.Policy(c, p, name)
	return append([]rlcore.Policy{own}, rest...), id, err
}
