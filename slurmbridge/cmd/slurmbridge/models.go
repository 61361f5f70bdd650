package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/pretrained"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// exitNoRound is the status of a retraining that has too few runs to learn from, or that finds
// another one running.
const exitNoRound = 3

func newModels(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "models",
		Short: "The network that learns on this site: list, retrain",
		Long: `models shows the network by which policy dqn decides, and trains it.

Every retrain_every the daemon trains a candidate on what ran here, in the background, and
replays the last days with the candidate and with the network in use. The candidate takes
over only if the jobs' mean turnaround (or the makespan, see objective) is shorter by more
than the noise. The network that it replaces is judged by the same rule in the next round,
and returns if it is better after all. If a network's file can't be used, the previous one
decides, and without one the built-in network.

The files are in models/ next to the database: network.json decides,
network.previous.json decided before it, rounds.json says what rounds found. To pin a
network, copy its file and name the copy as model in slurmbridge.yaml; to start again from
the built-in network, delete network.json. A running daemon follows within seconds.`,
		Example: `  slurmbridge models list
  slurmbridge models retrain`,
	}
	c.AddCommand(newModelsList(s), newModelsRetrain(s))
	for _, name := range []string{"show", "promote", "rollback", "auto"} {
		gone := fmt.Sprintf("models %s is gone: networks are files now, see slurmbridge models --help for how to pin one", name)
		c.AddCommand(&cobra.Command{
			Use: name, Short: gone, Hidden: true,
			RunE: func(*cobra.Command, []string) error { return cli.Usage(errors.New(gone)) },
		})
	}
	return c
}

type listing struct {
	// Network is the name of the network that decides, File its file; "" = it is built in.
	Network   string           `json:"network"`
	File      string           `json:"file,omitempty"`
	Objective policy.Objective `json:"objective"`
	// Unused says why the settings let another policy or network decide; "" = they don't.
	Unused string `json:"unused,omitempty"`
	// Unusable says what is wrong with files of networks.
	Unusable []string        `json:"unusable,omitempty"`
	Rounds   []models.Result `json:"rounds"` // oldest first
}

func newModelsList(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Which network decides, and what the last rounds of training found",
		Args:  cobra.NoArgs,
		RunE: s.Configured(func(_ *cobra.Command, cfg *config.Config, _ []string) error {
			l := list(cfg)
			return s.Show(l, func() { s.printNetworks(l) })
		}),
	}
}

func list(cfg *config.Config) *listing {
	dir, aim := modelsDir(cfg), policy.Objective(cfg.Objective)
	n := siteNetwork(dir, aim)
	l := &listing{Network: n.name, File: n.file, Objective: aim}
	for _, err := range n.unusable {
		l.Unusable = append(l.Unusable, err.Error())
	}
	switch {
	case !decidesByNetwork(cfg):
		l.Unused = "policy is " + cfg.Policy
	case cfg.Model != "":
		l.Unused = "the settings name a model, " + cfg.Model
	}
	var err error
	if l.Rounds, err = dir.Results(); err != nil {
		l.Unusable = append(l.Unusable, err.Error())
	}
	return l
}

func (s *shared) printNetworks(l *listing) {
	w := s.Out
	fmt.Fprintf(w, "Network in use: %s, for the %s.\n", l.Network, l.Objective)
	if l.File != "" {
		fmt.Fprintf(w, "Its file: %s\n", l.File)
	}
	if l.Unused != "" {
		fmt.Fprintf(w, "It decides nothing here: %s.\n", l.Unused)
	}
	for _, text := range l.Unusable {
		fmt.Fprintln(w, text)
	}
	if len(l.Rounds) == 0 {
		fmt.Fprintln(w, "No round of training has run yet.")
		return
	}
	t := s.Table("", "round", "learned from", "judged on", "seed", "network", "why")
	for i := len(l.Rounds) - 1; i >= max(0, len(l.Rounds)-20); i-- {
		r := &l.Rounds[i]
		t.AppendRow(table.Row{r.At.Local().Format("2006-01-02 15:04"), r.Trained.Runs, r.Trained.Held, r.Trained.Seed, r.Change, r.Why})
	}
	t.Render()
}

type retrainFlags struct {
	to     string
	seed   uint64
	rounds int
	sets   int // that are drawn to judge by; 0 = as many as usual
}

func newModelsRetrain(s *shared) *cobra.Command {
	var f retrainFlags
	c := &cobra.Command{
		Use:   "retrain",
		Short: "Train a network on what ran here lately, and let it decide if it is better",
		Long: `retrain does at once what the daemon does every retrain_every: it draws what ran here in the
last retrain_days, trains the network in use on all but the last quarter of it, and replays
that quarter with both. The new one takes over if the mean turnaround is shorter by more
than the noise, and by 0.5 % or more. The previous network is judged by the same rule first,
and returns if it is the better one.

It takes about half a minute of one core. The same runs, flags and network to begin with give
the same result. Status 3 says that there are
too few runs, or that another retraining is running.`,
		Example: `  slurmbridge models retrain
  slurmbridge models retrain --until 2026-03-01 --seed 7`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			if f.rounds < 1 {
				return cli.Usage(fmt.Errorf("--rounds is %d: at least 1", f.rounds))
			}
			to, err := moment(time.Now(), f.to)
			if err != nil {
				return cli.Usage(fmt.Errorf("--until: %w", err))
			}
			to = to.Truncate(time.Second) // so that --until can name it
			if !c.Flags().Changed("seed") {
				f.seed = uint64(to.Unix())
			}
			return s.retrain(c.Context(), cfg, &f, to)
		}),
	}
	config.Flags(c.Flags())
	c.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	fl := c.Flags()
	fl.StringVar(&f.to, "until", "0h", "learn from what ended before that: how long ago (7d, 36h) or a `TIME` (2026-03-01, 2026-03-01T12:00)")
	fl.Uint64Var(&f.seed, "seed", 0, "of the training (default: made from --until)")
	fl.IntVar(&f.rounds, "rounds", models.Rounds, "rounds of training, of 4 job sets each")
	fl.IntVar(&f.sets, "sets", 0, "job sets to judge by (default: 100)")
	_ = fl.MarkHidden("sets") // it is there
	return c
}

func (s *shared) retrain(ctx context.Context, cfg *config.Config, f *retrainFlags, to time.Time) error {
	log := s.Log()
	st, err := cli.OpenStore(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := owned(cfg); err != nil {
		return err
	}
	dir := modelsDir(cfg)
	noRound := func(err error) error {
		if errors.Is(err, models.ErrBusy) || errors.Is(err, models.ErrTooFew) {
			fmt.Fprintf(s.ErrOut, "slurmbridge: %v\n", err)
			return cli.Exit(exitNoRound)
		}
		return err
	}
	lock, err := dir.Lock()
	if err != nil {
		return noRound(err)
	}
	defer lock.Close()
	b := cli.NewBar(s.ErrOut)
	round, err := newRound(ctx, cfg, st, dir, f, to, log)
	var r *models.Result
	if err == nil {
		round.Progress = b.At
		r, err = round.Run(ctx)
	}
	b.Done()
	if err != nil {
		return noRound(err)
	}
	if err := r.Apply(dir, time.Now()); err != nil {
		return err
	}
	return s.Show(r, func() { fmt.Fprintf(s.Out, "The network in use is %s: %s.\n", r.Change, r.Why) })
}

func newRound(ctx context.Context, cfg *config.Config, st *store.Store, dir models.Dir, f *retrainFlags, to time.Time, log *slog.Logger) (*models.Round, error) {
	mix, err := loadMix(ctx, cfg, st, journal.New(st.DB()), to.AddDate(0, 0, -cfg.RetrainDays), to)
	if err != nil {
		return nil, err
	}
	if n := mix.Runs + mix.Held; n < cfg.RetrainRuns {
		return nil, fmt.Errorf("%w: %d of the last %d days can be learned from; %s asks for %d",
			models.ErrTooFew, n, cfg.RetrainDays, cfg.Where("retrain_runs"), cfg.RetrainRuns)
	}
	aim := policy.Objective(cfg.Objective)
	n := siteNetwork(dir, aim)
	for _, err := range n.unusable {
		log.Warn("a network isn't judged", "err", err)
	}
	round := &models.Round{Mix: mix, Seed: f.seed, Rounds: f.rounds, Sets: f.sets, Version: version, Base: n.checkpoint}
	if n.file == dir.Current() {
		// Without a file the built-in network decided before.
		if round.Previous, err = models.Load(dir.Previous(), aim); err == nil && round.Previous == nil {
			round.Previous, err = pretrained.Checkpoint(aim)
		}
		if err != nil {
			log.Warn("the previous network isn't judged", "err", err)
		}
	}
	return round, nil
}

// owned refuses to write files next to another user's database: the daemon could not read them.
func owned(cfg *config.Config) error {
	info, err := os.Stat(cfg.Database)
	if err != nil {
		return fmt.Errorf("%s: %w", cfg.Where("database"), err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() {
		return nil
	}
	name := strconv.Itoa(int(st.Uid))
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s: %s belongs to %s: run this as that user, whose daemon must read what it writes", cfg.Where("database"), cfg.Database, name)
}

func modelsDir(cfg *config.Config) models.Dir {
	return models.Dir(filepath.Join(filepath.Dir(cfg.Database), "models"))
}

// learns reports whether the site's own networks decide.
func learns(cfg *config.Config) bool { return decidesByNetwork(cfg) && cfg.Model == "" }

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
	rules := models.Rules{Objective: policy.Objective(cfg.Objective), Window: cfg.Window}
	guardOf(cfg, nil).Rules(&rules.Guard)
	rules.Guard.ExtendLimit = false // training jobs have no limits
	return models.Draw(from, to, runs, card, past, rules), nil
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
	for _, file := range []string{dir.Current(), dir.Previous()} {
		c, err := models.Load(file, aim)
		if err != nil {
			n.unusable = append(n.unusable, err)
			continue
		}
		if c != nil {
			n.checkpoint, n.name, n.file = c, "site, previous", file
			if file == dir.Current() {
				n.name = dir.Name()
			}
		}
		break
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
