package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/models"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

// exitTooFew is the status of a retraining that has too few runs to learn from.
const exitTooFew = 3

// retrainFlags are the flags of a retraining.
type retrainFlags struct {
	to     string
	seed   uint64
	rounds int
	sets   int // that are drawn to judge by; 0 = as many as usual
	again  int64
	// low: the daemon runs it, and writes down the result.
	low bool
}

func newModelsRetrain(s *shared) *cobra.Command {
	var f retrainFlags
	c := &cobra.Command{
		Use:   "retrain",
		Short: "Train a model on what ran here lately, judge it, promote it if it is better",
		Long: `retrain does at once what the daemon does every retrain_every: it draws what ran here
in the last retrain_days, trains the model in use on all but the last quarter of
it, and replays that quarter with both. The new one is promoted if the mean turnaround is
shorter by more than the noise, and by 0.5 % or more; otherwise it is kept as rejected,
with the figures. The model that was in use before the present one is held against that
by the same rule, and comes back where it is the better one.

A running daemon goes over to the promoted model by itself, between two looks.

It takes about half a minute of one core. Status 3 says that there are too few
runs.

--again N repeats the training of model N from what was kept of it, and says whether the
same network and verdict come out, bit by bit.`,
		Example: `  slurmbridge models retrain
  slurmbridge models retrain --until 2026-03-01 --seed 7
  slurmbridge models retrain --again 3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.Load(c)
			if err != nil {
				return err
			}
			if f.rounds < 1 {
				return cli.Usage(fmt.Errorf("--rounds is %d: at least 1", f.rounds))
			}
			if f.again != 0 {
				for _, other := range []string{"until", "seed", "rounds"} {
					if c.Flags().Changed(other) {
						return cli.Usage(fmt.Errorf("--%s is that of the model with --again", other))
					}
				}
			}
			to, err := moment(time.Now(), f.to)
			if err != nil {
				return cli.Usage(fmt.Errorf("--until: %w", err))
			}
			if !c.Flags().Changed("seed") {
				f.seed = uint64(to.Unix())
			}
			return s.retrain(c.Context(), cfg, &f, to)
		},
	}
	config.Flags(c.Flags())
	c.Flags().VisitAll(hide)
	fl := c.Flags()
	fl.StringVar(&f.to, "until", "0h", "learn from what ended before that: how long ago (7d, 36h) or a `TIME` (2026-03-01, 2026-03-01T12:00)")
	fl.Uint64Var(&f.seed, "seed", 0, "of the training (default: made from --until)")
	fl.IntVar(&f.rounds, "rounds", models.Rounds, "rounds of training, of 4 job sets each")
	fl.Int64Var(&f.again, "again", 0, "repeat the training of model `N` and compare")
	fl.BoolVar(&f.low, "low", false, "for the daemon")
	fl.IntVar(&f.sets, "sets", 0, "job sets to judge by (default: 100)")
	for _, name := range []string{"low", "sets"} {
		_ = fl.MarkHidden(name) // it is there
	}
	return c
}

// retraining is what one works on.
type retraining struct {
	cfg    *config.Config
	store  *store.Store
	jour   *journal.Journal
	models *models.Register
	dir    models.Dir
	log    *slog.Logger
}

func (s *shared) openModels(ctx context.Context, cfg *config.Config) (*retraining, error) {
	log := slog.New(slog.NewTextHandler(s.ErrOut, nil))
	st, err := cli.OpenStore(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	return &retraining{
		cfg: cfg, store: st, jour: journal.New(st.DB()), models: models.NewRegister(st.DB()), dir: modelsDir(cfg), log: log,
	}, nil
}

func (r *retraining) close() { _ = r.store.Close() } // nothing is left to write

// found is what a child reports to the daemon.
type found struct {
	Base    int64           `json:"base"` // in use when it began
	From    int64           `json:"from"` // whose network it began with
	Finding *models.Finding `json:"finding"`
	SHA256  string          `json:"sha256"`
	Mix     string          `json:"mix"`
}

func (s *shared) retrain(ctx context.Context, cfg *config.Config, f *retrainFlags, to time.Time) error {
	r, err := s.openModels(ctx, cfg)
	if err != nil {
		return err
	}
	defer r.close()
	if f.again != 0 {
		return s.retrainAgain(ctx, r, f.again)
	}
	if err := errors.Join(owned(cfg), r.dir.Make()); err != nil {
		return err
	}
	if f.low {
		// Not before the database is open: what holds its lock should be quick.
		if err := lowest(); err != nil {
			r.log.Warn("retraining not at the lowest priority", "err", err)
		}
	} else {
		lock, err := r.dir.Lock()
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	b := cli.NewBar(s.ErrOut)
	out, err := r.run(ctx, f, to, b)
	b.Done()
	switch {
	case errors.Is(err, models.ErrTooFew):
		fmt.Fprintf(s.ErrOut, "slurmbridge: %v\n", err)
		return cli.Exit(exitTooFew)
	case err != nil:
		return err
	case f.low:
		return json.NewEncoder(s.Out).Encode(out)
	}
	m, err := r.conclude(ctx, out)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.PrintJSON(m)
	}
	fmt.Fprintf(s.Out, "Model %d, %s: %s.\n", m.ID, m.State, m.History[len(m.History)-1].Why)
	return nil
}

// owned refuses to write files next to another user's database: the daemon could
// not read them.
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

// run draws the mix, trains and judges. It writes files, but nothing to the database.
func (r *retraining) run(ctx context.Context, f *retrainFlags, to time.Time, b *cli.Bar) (*found, error) {
	use, err := r.models.Use(ctx)
	if err != nil {
		return nil, err
	}
	// Only seconds: so --until can name it.
	to = to.Truncate(time.Second)
	mix, err := loadMix(ctx, r.cfg, r.store, r.jour, to.AddDate(0, 0, -r.cfg.RetrainDays), to)
	if err != nil {
		return nil, err
	}
	if learn, held := mix.Sizes(); learn+held < r.cfg.RetrainRuns {
		return nil, fmt.Errorf("%w: %d of the last %d days can be learned from; %s asks for %d",
			models.ErrTooFew, learn+held, r.cfg.RetrainDays, r.cfg.Where("retrain_runs"), r.cfg.RetrainRuns)
	}
	round := &models.Round{
		Mix: mix, Seed: f.seed, Rounds: f.rounds, Sets: f.sets, Version: version,
		Progress: func(done, of int, what string) { b.At(done, of, what) },
	}
	out := &found{Base: use.Model}
	if out.From, err = r.contenders(ctx, use.Model, round); err != nil {
		return nil, err
	}
	if out.Finding, err = round.Run(ctx); err != nil {
		return nil, err
	}
	if out.Mix, err = r.dir.PutMix(mix); err != nil {
		return nil, err
	}
	if out.Finding.Candidate != nil {
		out.SHA256, err = r.dir.PutCheckpoint(out.Finding.Candidate)
	}
	return out, err
}

// aim is what networks learn to keep small.
func (r *retraining) aim() policy.Objective { return policy.Objective(r.cfg.Objective) }

// contenders reads the networks of the model in use and the one before it. A model
// whose file can't be used decides nothing: the first before it that can be does, and is
// trained on. Returns its number.
func (r *retraining) contenders(ctx context.Context, id int64, round *models.Round) (from int64, err error) {
	if round.Base, from, err = siteModel(ctx, r.models, r.dir, r.aim(), r.log); err != nil {
		return 0, err
	}
	if id == models.BuiltIn || from != id {
		return from, nil
	}
	m, err := r.models.Get(ctx, id)
	if err != nil {
		return 0, err
	}
	if round.Former, err = checkpoint(ctx, r.models, r.dir, r.aim(), m.Former); err != nil {
		r.log.Warn("the model before can't be judged", "err", err)
	}
	return from, nil
}

// conclude writes down the result of a round, and removes files without use. The
// caller holds the lock.
func (r *retraining) conclude(ctx context.Context, f *found) (*models.Model, error) {
	m, err := r.models.Conclude(ctx, f.Base, f.From, f.Finding, f.SHA256, f.Mix)
	if err != nil {
		return nil, err
	}
	keep, err := r.models.Keep(ctx, time.Now().Add(-history.KeptFor))
	if err == nil {
		err = r.dir.Sweep(keep)
	}
	if err != nil {
		r.log.Warn("models not tidied", "err", err)
	}
	return m, nil
}

// retrainAgain repeats a training.
func (s *shared) retrainAgain(ctx context.Context, r *retraining, id int64) error {
	m, err := r.models.Get(ctx, id)
	if err != nil {
		return err
	}
	mix, err := r.dir.Mix(m.Mix)
	if err != nil {
		return fmt.Errorf("model %d: %w", id, err)
	}
	base, err := checkpoint(ctx, r.models, r.dir, cmp.Or(mix.Rules.Objective, policy.Turnaround), m.Base)
	if err != nil {
		return fmt.Errorf("model %d began with: %w", id, err)
	}
	round := &models.Round{Mix: mix, Seed: m.Trained.Seed, Rounds: m.Trained.Rounds, Base: base, Version: m.Trained.Version}
	if m.Verdict != nil {
		round.Sets = m.Verdict.Sets
	}
	f, err := round.Run(ctx)
	if err != nil {
		return err
	}
	same := f.Candidate == nil && m.SHA256 == ""
	if f.Candidate != nil && m.SHA256 != "" && m.Verdict != nil {
		text, err := models.Encode(f.Candidate)
		if err != nil {
			return err
		}
		kept, err := r.dir.Text(m.SHA256)
		if err != nil {
			return err
		}
		same = bytes.Equal(text, kept) && *f.Verdict == *m.Verdict
	}
	if !same {
		return fmt.Errorf("model %d: another network, or verdict, came out: this program (%s) is not the one that trained it (%s), or another machine rounds otherwise", id, version, m.Trained.Version)
	}
	if s.JSON {
		return s.PrintJSON(map[string]any{"model": id, "same": true, "verdict": f.Verdict})
	}
	fmt.Fprintf(s.Out, "Model %d: the same comes out.\n", id)
	return nil
}
