package lab

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

func newInterference(s *shared) *cobra.Command {
	var f measuredFlags
	c := &cobra.Command{
		Use:   "interference --profiles FILE --pairs FILE",
		Short: "Predict measured slowdowns from solo profiles, and say how far off",
		Long: `interference predicts the slowdown of each pair of --pairs from what --profiles says of the
two applications alone, and compares. It changes nothing and needs no daemon.

The files are CSV with a header; columns in any order:
  --profiles  app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms
              what an application uses when it runs alone, utilisations in percent
              (mem_util: how busy the memory controller is), step_ms the time of one iteration;
              all but app and gpu_util may be empty or left out
  --pairs     victim,aggressor,slowdown
              the victim's run time next to the aggressor over its run time alone; the
              columns aggressor2, aggressor3 and so on name the others of a group
  --observed  the same columns as --pairs: co-runs that the model is shown first. Rows
              that are in --pairs too are then no test: leave them out there.

n is the number of measurements, mae the mean of |predicted - measured|, spearman the rank
correlation of the two (1 = the right order), median_rel_error the median of
|predicted - measured| / measured, within_sd the part of the pairs that are off by no more
than the predicted standard deviation (about 0.68 is right). Two simple predictions stand beside: a constant
(the median of what the model predicts), and the sum of both
utilisations, at least 1. --law says how the card was shared: mps, or time-slice where
kernels of two processes never overlap (no MPS). The link is PCIe 3.0 x16.`,
		Example: `  slurmbridge lab interference --profiles solo.csv --pairs measured.csv

  cat solo.csv                          cat measured.csv
  app,gpu_util,step_ms                  victim,aggressor,slowdown
  resnet50,97,250                       resnet50,lammps,1.21
  lammps,40,256                         lammps,resnet50,1.48

  head -n 20 measured.csv > seen.csv    # how much do 19 co-runs teach it?
  (head -n 1 measured.csv; tail -n +21 measured.csv) > rest.csv
  slurmbridge lab interference --profiles solo.csv --observed seen.csv --pairs rest.csv --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.profiles == "" || f.pairs == "" {
				return cli.Usage(fmt.Errorf("--profiles and --pairs are needed; see %s --help", c.CommandPath()))
			}
			r, err := score(&f)
			if err != nil {
				return err
			}
			return s.Show(r, func() { s.printScore(r) })
		},
	}
	f.add(c)
	return c
}

func lawNamed(name string) (*contention.Law, error) {
	for _, l := range []*contention.Law{&contention.MPS, &contention.TimeSlice} {
		if l.Name == name {
			return l, nil
		}
	}
	return nil, cli.Usage(fmt.Errorf("--law is %q; there are mps and time-slice", name))
}

// score shows the model what was observed, and has it predict the pairs.
func score(f *measuredFlags) (interference.Report, error) {
	var t experiment.Trace
	if _, err := f.read(&t); err != nil {
		return interference.Report{}, err
	}
	profiles := map[string]*rlcore.Profile{}
	for _, p := range t.Profiles {
		profiles[p.App] = p
	}
	m := interference.New(t.Law)
	// The files don't name the card: a PCIe 3.0 x16 link is assumed.
	card := &rlcore.GPUSpec{PCIeMBps: rlcore.TitanXp.PCIeMBps}
	trace.Teach(m, card, t.Profiles, t.Observed)
	return interference.Score(m, card, profiles, t.Pairs), nil
}

func (s *shared) printScore(r interference.Report) {
	t := s.Table("", fmt.Sprintf("%d measurements", r.N), "mean error", "rank correlation", "median relative error",
		"within one SD")
	t.AppendRows([]table.Row{
		{
			"model", fixed(3, r.MAE), fixed(3, r.Spearman), fmt.Sprintf("%.1f %%", 100*r.MedianRelError),
			fmt.Sprintf("%.0f %%", 100*r.WithinSD),
		},
		{"a constant", fixed(3, r.BaselineConstant.MAE), fixed(3, r.BaselineConstant.Spearman)},
		{"max(1, Σ utilisation)", fixed(3, r.BaselineSumUtil.MAE), fixed(3, r.BaselineSumUtil.Spearman)},
	})
	t.Render()
}
