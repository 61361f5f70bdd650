package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
)

func hide(f *pflag.Flag) { f.Hidden = true }

func newModels(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "models",
		Short: "The networks that learned on this site: list, show, promote, rollback, auto, retrain",
		Long: `models shows and chooses the network by which policy dqn decides.

Once every retrain_every the daemon trains a candidate on what ran here, in the
background, and replays the last days with it and with the network in use. It is
promoted only if the jobs' mean turnaround is shorter by more than the noise. A promoted
one is held against the one before it in every later round, by the same rule, and rolled
back if that one is better after all. Where a model's file can't be used the one before
it decides, at last the one that is built in, which is model 0.

The files lie beside the database, in models/. A model that was chosen by promote is
pinned: rounds go on, and say what they think, but don't replace it until rollback or
auto. A running daemon goes over to another model within seconds, between two looks.`,
		Example: `  slurmbridge models list
  slurmbridge models show 3         what it was trained on, how it was judged, and why
  slurmbridge models rollback       the one before it decides again
  slurmbridge models promote 0      the one built in decides, whatever rounds find
  slurmbridge models auto           rounds choose again`,
	}
	c.AddCommand(newModelsList(s), newModelsShow(s), newModelsPromote(s), newModelsRollback(s), newModelsAuto(s), newModelsRetrain(s))
	return c
}

// withModels opens the models for a command.
func (s *shared) withModels(c *cobra.Command, f func(r *retraining) error) error {
	cfg, err := s.Load(c)
	if err != nil {
		return err
	}
	r, err := s.openModels(c.Context(), cfg)
	if err != nil {
		return err
	}
	defer r.close()
	return f(r)
}

// listed is a model as list and show print it.
type listed struct {
	models.Model
	InUse  bool `json:"in_use"`
	Pinned bool `json:"pinned"`
	// Unusable says what is wrong with its file; "" = nothing, or it has none.
	Unusable string `json:"unusable,omitempty"`
	File     string `json:"file,omitempty"`
}

// listing is what list prints. Deciding is the model by which a daemon decides: another
// than is in use where that one's file can't be used.
type listing struct {
	models.Use
	Deciding int64 `json:"deciding"`
	// Objective is what they learn to keep small; BuiltIn is what model 0 is called.
	Objective policy.Objective `json:"objective"`
	BuiltIn   string           `json:"built_in"`
	// NotLooking says why the settings have none of these models decide, "" = they do.
	NotLooking string   `json:"not_looking,omitempty"`
	Models     []listed `json:"models"`
}

func (r *retraining) listed(m *models.Model, u models.Use) listed {
	l := listed{Model: *m, InUse: m.ID == u.Model, Pinned: m.ID == u.Model && u.Pinned}
	if m.SHA256 == "" {
		return l
	}
	l.File = r.dir.Path(m.SHA256)
	if _, err := r.dir.CheckpointFor(r.aim(), m.SHA256); err != nil {
		l.Unusable = err.Error()
	}
	return l
}

// listing reads all files, to know whether they can be used.
func (r *retraining) listing(ctx context.Context) (*listing, error) {
	u, err := r.models.Use(ctx)
	if err != nil {
		return nil, err
	}
	all, err := r.models.List(ctx)
	if err != nil {
		return nil, err
	}
	l := &listing{Use: u, Deciding: u.Model, Objective: r.aim(), BuiltIn: pretrained.BuiltInFor(r.aim()), Models: []listed{}}
	switch {
	case !decidesByNetwork(r.cfg):
		l.NotLooking = fmt.Sprintf("policy is %s", r.cfg.Policy)
	case r.cfg.Model != "":
		l.NotLooking = fmt.Sprintf("the settings name a model, %s", r.cfg.Model)
	}
	for i := range all {
		l.Models = append(l.Models, r.listed(&all[i], u))
	}
	line, err := r.models.Line(ctx)
	if err != nil {
		return nil, err
	}
	l.Deciding = models.BuiltIn
	for i := range line {
		at := slices.IndexFunc(l.Models, func(m listed) bool { return m.ID == line[i].ID })
		if at >= 0 && l.Models[at].Unusable == "" {
			l.Deciding = line[i].ID
			break
		}
	}
	return l, nil
}

func newModelsList(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "All models: when they were made, on how many runs, how they were judged, which one decides",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withModels(c, func(r *retraining) error {
				l, err := r.listing(c.Context())
				if err != nil {
					return err
				}
				if s.JSON {
					return s.PrintJSON(l)
				}
				l.text(s.Out)
				return nil
			})
		},
	}
}

func (l *listing) text(w io.Writer) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"model", "made", "runs", "seed", string(l.Objective), "noise", "state", ""})
	t.AppendRow(table.Row{0, l.BuiltIn, "", "", "", "", "", use(l.Model == models.BuiltIn, l.Pinned)})
	for i := range l.Models {
		m := &l.Models[i]
		gain, noise := "", ""
		if v := m.Verdict; v != nil {
			gain, noise = fmt.Sprintf("%+.1f %%", -100*v.Gain), fmt.Sprintf("± %.1f %%", 100*v.Noise)
		}
		t.AppendRow(table.Row{m.ID, clock(m.Made), m.Trained.Runs + m.Trained.Held, m.Trained.Seed, gain, noise, m.State, use(m.InUse, m.Pinned)})
	}
	t.Render()
	for i := range l.Models {
		if m := &l.Models[i]; m.InUse && m.Unusable != "" {
			fmt.Fprintf(w, "Model %d: %s. Model %d decides.\n", m.ID, m.Unusable, l.Deciding)
		}
	}
	if l.NotLooking != "" {
		fmt.Fprintf(w, "None of them decides here: %s.\n", l.NotLooking)
	}
}

func use(is, pinned bool) string {
	switch {
	case is && pinned:
		return "in use, pinned"
	case is:
		return "in use"
	}
	return ""
}

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// modelID reads a model's number.
func modelID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 0 {
		return 0, cli.Usage(fmt.Errorf("%.40q is no model's number; see slurmbridge models list", text))
	}
	return id, nil
}

func newModelsShow(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:     "show MODEL",
		Short:   "What a model was trained on, how it was judged, and what became of it",
		Example: `  slurmbridge models show 3 --json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := modelID(args[0])
			if err != nil {
				return err
			}
			return s.withModels(c, func(r *retraining) error {
				u, err := r.models.Use(c.Context())
				if err != nil {
					return err
				}
				if id == models.BuiltIn {
					return s.showBuiltIn(c.Context(), r, u)
				}
				m, err := r.models.Get(c.Context(), id)
				if err != nil {
					return err
				}
				l := r.listed(m, u)
				if s.JSON {
					return s.PrintJSON(&l)
				}
				l.text(s.Out)
				return nil
			})
		},
	}
}

func (s *shared) showBuiltIn(ctx context.Context, r *retraining, u models.Use) error {
	cp, err := checkpoint(ctx, r.models, r.dir, r.aim(), models.BuiltIn)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.PrintJSON(map[string]any{"id": models.BuiltIn, "in_use": u.Model == models.BuiltIn, "pinned": u.Model == models.BuiltIn && u.Pinned, "objective": cp.Objective, "trained": cp.Trained})
	}
	fmt.Fprintf(s.Out, "Model 0, %s %s\n", pretrained.BuiltInFor(r.aim()), use(u.Model == models.BuiltIn, u.Pinned))
	if !pretrained.Learned(cp) {
		fmt.Fprintf(s.Out, "  It is untrained and decides as %s does: no network is known to be better for the %s.\n", dqn.Start(cp.Objective), cp.Objective)
		return nil
	}
	fmt.Fprintf(s.Out, "  trained on   %s, seed %d, %d rounds, by %s\n", cp.Trained.Scenario, cp.Trained.Seed, cp.Trained.Rounds, cp.Trained.CreatedBy)
	return nil
}

func (l *listed) text(w io.Writer) {
	fmt.Fprintf(w, "Model %d, %s %s\n", l.ID, l.State, use(l.InUse, l.Pinned))
	tr := &l.Trained
	fmt.Fprintf(w, "  made         %s by slurmbridge %s, beginning with model %d\n", clock(l.Made), tr.Version, l.Base)
	fmt.Fprintf(w, "  trained on   %d runs that began to wait from %s to %s; seed %d, best of %d rounds: %d\n", tr.Runs, clock(tr.From), clock(tr.Split), tr.Seed, tr.Rounds, tr.BestRound)
	fmt.Fprintf(w, "  judged on    %d runs from then to %s\n", tr.Held, clock(tr.To))
	if tr.Guessed > 0 {
		fmt.Fprintf(w, "               of %d nobody saw when they came: their start stands for it\n", tr.Guessed)
	}
	for _, why := range slices.Sorted(maps.Keys(tr.LeftOut)) {
		fmt.Fprintf(w, "  left out     %d: %s\n", tr.LeftOut[why], why)
	}
	if v := l.Verdict; v != nil {
		fmt.Fprintf(w, "  gain         %.2f %% of the %s, standard error %.2f %%; with %.0f %% confidence more than %.2f %%\n",
			100*v.Gain, cmp.Or(v.Objective, policy.Turnaround), 100*v.Noise, 100*models.Confidence, 100*v.Bound)
		fmt.Fprintf(w, "               it takes a bound above 0 and a gain of %.1f %%; %d sets of %d jobs, %d blocks each\n",
			100*models.LeastGain, v.Sets, v.Jobs, v.Blocks)
		t := table.NewWriter()
		t.SetStyle(table.StyleLight)
		t.AppendHeader(table.Row{"", "turnaround, s", "makespan, s", "mean slowdown", "95 % below", "runs lost"})
		for _, row := range []struct {
			name string
			s    *models.Score
		}{{fmt.Sprintf("model %d", l.ID), &v.Own}, {fmt.Sprintf("model %d", l.Base), &v.Other}} {
			t.AppendRow(table.Row{
				row.name, fmt.Sprintf("%.1f", row.s.TurnaroundS), fmt.Sprintf("%.1f", row.s.MakespanS),
				fmt.Sprintf("%.3f", row.s.MeanSlowdown), fmt.Sprintf("%.3f", row.s.P95Slowdown), fmt.Sprintf("%.2f", row.s.OOM),
			})
		}
		fmt.Fprintln(w, t.Render())
	}
	for _, e := range l.History {
		fmt.Fprintf(w, "  %s  %s: %s\n", clock(e.At), e.To, e.Why)
	}
	switch {
	case l.Unusable != "":
		fmt.Fprintf(w, "  file         %s\n", l.Unusable)
	case l.File != "":
		fmt.Fprintf(w, "  file         %s\n", l.File)
	}
}

// by names who gave a command, for the models' history.
func by(what string) string {
	name := "an admin"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return what + " by " + name
}

func newModelsPromote(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "promote MODEL",
		Short: "Have a model decide, and pin it",
		Long: `promote has a model decide, whatever state it is in, and pins it: no later round puts
another one in its place until models rollback or models auto. Model 0 is the one that is
built in.`,
		Example: `  slurmbridge models promote 3`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := modelID(args[0])
			if err != nil {
				return err
			}
			return s.withModels(c, func(r *retraining) error {
				// What can't be used is not put in use.
				if _, err := checkpoint(c.Context(), r.models, r.dir, r.aim(), id); err != nil {
					return err
				}
				if err := r.models.Promote(c.Context(), id, by("chosen")); err != nil {
					return err
				}
				return s.chosen(c.Context(), r)
			})
		},
	}
}

func newModelsRollback(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "rollback",
		Short: "Take the model in use back; the one before it decides",
		Long: `rollback takes the model in use back: the one that decided before it does again. What
promote has pinned is no longer: later rounds choose.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withModels(c, func(r *retraining) error {
				if err := r.models.Rollback(c.Context(), by("taken back")); err != nil {
					return err
				}
				return s.chosen(c.Context(), r)
			})
		},
	}
}

func newModelsAuto(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "auto",
		Short: "Let rounds choose the model again, after promote",
		Long:  `auto unpins the model that promote has chosen. It goes on deciding until a round finds a better one.`,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withModels(c, func(r *retraining) error {
				if err := r.models.Auto(c.Context()); err != nil {
					return err
				}
				return s.chosen(c.Context(), r)
			})
		},
	}
}

// chosen says which model decides now.
func (s *shared) chosen(ctx context.Context, r *retraining) error {
	l, err := r.listing(ctx)
	if err != nil {
		return err
	}
	if s.JSON {
		l.Models = []listed{}
		return s.PrintJSON(l)
	}
	how := "later rounds may replace it"
	if l.Pinned {
		how = "it is pinned"
	}
	if l.Model == models.BuiltIn {
		fmt.Fprintf(s.Out, "The built-in network decides; %s.\n", how)
	} else {
		fmt.Fprintf(s.Out, "Model %d decides; %s.\n", l.Model, how)
	}
	if l.Deciding != l.Model {
		fmt.Fprintf(s.Out, "Its file can't be used: model %d decides.\n", l.Deciding)
	}
	if l.NotLooking != "" {
		fmt.Fprintf(s.Out, "None of them decides here: %s.\n", l.NotLooking)
	}
	return nil
}
