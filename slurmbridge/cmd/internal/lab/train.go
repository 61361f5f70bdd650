package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// trainFlags are the flags of train.
type trainFlags struct {
	from                 traceFlags
	workload, objective  string
	out                  string
	rounds, window, hide int
	maxSlowdown, grace   float64
	seed                 uint64
}

func newTrain(s *shared) *cobra.Command {
	var f trainFlags
	c := &cobra.Command{
		Use:   "train --out FILE",
		Short: "Train the network that decides, on the simulator",
		Long: `train teaches a DQN which combinations of jobs to start together, on simulated job
sets, and writes it to a file for the daemon (policy: FILE) and for
replay --checkpoint. It needs no Slurm and no GPU.

The job sets come from one of
  --workload NAME     arrivals: jobs that come over time, on sites drawn at random (the
                      default); general: all of the thesis's five, where all jobs come at
                      once (the default for the makespan); or one of these five
  --jobs, --profiles  a trace (see slurmbridge lab replay --help), without its time
                      limits: a job that is ended early would look like time won

Name the site's contract: --max-slowdown and --grace bound what the network may do in its
training as the daemon's settings of these names do later.

The network begins as the policy srpt (greedy for the makespan) and learns the difference. What it has learned
is kept only if it is better beyond doubt on job sets that it never saw; the file says
which round that was. The same seed gives the same file. Interrupted, it writes what it
has.`,
		Example: `  slurmbridge lab train --out dqn.json
  slurmbridge lab train --jobs jobs.csv --profiles solo.csv --gpus 4 --out site.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return s.train(c, &f)
		},
	}
	f.from.add(c)
	fl := c.Flags()
	fl.StringVar(&f.workload, "workload", "",
		"arrivals (default), general (default for the makespan) or one of "+strings.Join(experiment.Workloads(), ", "))
	fl.StringVar(&f.objective, "objective", string(policy.Turnaround),
		"what it learns to keep small: "+strings.Join(policy.Objectives(), " or "))
	fl.StringVar(&f.out, "out", "", "write the network to `FILE`")
	fl.IntVar(&f.rounds, "rounds", 240, "rounds of training, of 4 job sets each")
	fl.IntVar(&f.window, "window", rlcore.DefaultWindow, "pending jobs a decision looks at")
	addContract(fl, &f.maxSlowdown, &f.grace)
	fl.IntVar(&f.hide, "hidden", 0, "units of a hidden layer (default 32)")
	fl.Uint64Var(&f.seed, "seed", 1, "of the training")
	return c
}

// lesson is what to train on.
type lesson struct {
	name     string
	scenario dqn.Scenario
	model    func() *interference.Model
}

func (f *trainFlags) lesson() (*lesson, error) {
	_, law, err := f.from.cards()
	if err != nil {
		return nil, err
	}
	l := &lesson{name: f.workload, model: func() *interference.Model { return interference.New(law) }}
	switch {
	case f.from.jobs != "" || f.from.profiles != "":
		t, _, err := f.from.read()
		if err != nil {
			return nil, err
		}
		var w *experiment.World
		if l.scenario, w, err = t.Training(f.window); err != nil {
			return nil, f.from.placed(err)
		}
		l.name = "trace " + f.from.jobs
		l.model = w.Model
	case f.workload == "arrivals":
		l.scenario = experiment.Arrivals
	default:
		l.scenario, err = experiment.Thesis(f.workload)
	}
	return l, err
}

func (s *shared) train(c *cobra.Command, f *trainFlags) error {
	l, err := f.lesson()
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(f.seed, 0x0e7)) //nolint:gosec // a training is repeatable, not secret
	t := &dqn.Trainer{
		Options:  dqn.Options{Seed: f.seed, Rounds: f.rounds, M: f.window},
		Net:      dqn.NewScorer(policy.Objective(f.objective), cmp.Or(f.hide, 32), l.model(), r),
		Scenario: l.scenario,
		Guard: func() *rlcore.Guard {
			return rlcore.NewGuard(rlcore.Rules{Predictor: l.model(), MaxSlowdown: f.maxSlowdown, Grace: f.grace})
		},
	}
	b := cli.NewBar(s.ErrOut)
	t.Progress = func(p dqn.RoundStats) {
		what := fmt.Sprintf("round %d: %s %.3f of %s", p.Round, t.Net.Objective(), p.Train, t.Against())
		b.At(p.Round, f.rounds, what)
	}
	began := time.Now()
	err = t.Train(c.Context())
	b.Done()
	broken := errors.Is(err, context.Canceled)
	if err != nil && !broken {
		return err
	}
	cp := dqn.FromTrainer(t, l.name, "slurmbridge "+s.Version)
	if err := dqn.Save(f.out, cp); err != nil {
		return err
	}
	if broken {
		fmt.Fprintf(s.ErrOut, "Interrupted after round %d.\n", cp.Trained.Rounds)
	}
	if s.JSON {
		if t.Curve == nil {
			t.Curve = []dqn.RoundStats{}
		}
		return s.PrintJSON(t.Curve)
	}
	fmt.Fprintf(s.Out, "%s: trained on %s, seed %d, %.0f s. ", f.out, l.name, t.Options.Seed, time.Since(began).Seconds())
	if t.BestRound == 0 {
		fmt.Fprintf(s.Out, "No round was better beyond doubt than what it began as (%s): %s %.3f of %s.\n",
			dqn.Start(t.Net.Objective()), t.Net.Objective(), t.Best, t.Against())
		return nil
	}
	fmt.Fprintf(s.Out, "Kept from round %d: %s %.3f of %s.\n", t.BestRound, t.Net.Objective(), t.Best, t.Against())
	return nil
}

// check refuses settings before anything is read or computed.
func (f *trainFlags) check(c *cobra.Command) error {
	if f.workload == "" {
		f.workload = "arrivals"
		if f.objective == string(policy.Makespan) {
			f.workload = "general"
		}
	}
	workloads := append([]string{"arrivals", "general"}, experiment.Workloads()...)
	_, unknown := policy.ObjectiveNamed(f.objective)
	var wrong error
	switch {
	case f.out == "":
		wrong = errors.New("--out is needed: the file to write")
	case c.Flags().Changed("workload") && (f.from.jobs != "" || f.from.profiles != ""):
		wrong = errors.New("job sets come from one of --workload, and --jobs with --profiles")
	case !slices.Contains(workloads, f.workload):
		wrong = fmt.Errorf("--workload: there is no workload %q; there are %s", f.workload, strings.Join(workloads, ", "))
	case unknown != nil:
		wrong = fmt.Errorf("--objective: %w", unknown)
	case f.rounds < 1, f.window < 1, f.window > rlcore.MaxWindow, f.hide < 0, f.hide > 1024:
		wrong = fmt.Errorf("--rounds %d, --window %d, --hidden %d: at least one round, a window of 1 to %d, up to 1024 units",
			f.rounds, f.window, f.hide, rlcore.MaxWindow)
	}
	if wrong != nil {
		return cli.Usage(wrong)
	}
	if real, err := filepath.EvalSymlinks(f.out); err == nil {
		f.out = real // a link stays one
	}
	if isSpecial(f.out) {
		return cli.Usage(fmt.Errorf("%s is not a regular file", f.out))
	}
	if err := writable(f.out); err != nil {
		return err
	}
	return checkContract(f.maxSlowdown, f.grace)
}
