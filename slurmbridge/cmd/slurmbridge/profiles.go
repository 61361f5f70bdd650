package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

func newProfiles(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "profiles",
		Short: "What applications use of a GPU: list, identify, show, import, export, forget",
		Long: `profiles shows and changes what the bridge knows of applications. A user's own runs
make that user's profiles; imported ones are the whole site's, until own runs say
better.

An application is recognised by its job script, comments, #SBATCH lines and white
space aside, by its arguments, and by the folder of submission where the script's
inputs are found from there; slurmbridge profiles identify SCRIPT shows how. The same
script with other numbers (-n 1000, --batch-size=64, N=4096, water_96k.tpr) is a
relative: until it has run alone it is taken for what its relatives let expect, on the
safe side. --comment=app=NAME overrules all that, and so does SLURMBRIDGE_APP=NAME in
sbatch's environment or in the script.`,
		Example: `  slurmbridge profiles list
  slurmbridge profiles show lmp-3f9a1c2b04d1 --user ann`,
	}
	c.AddCommand(newProfilesList(s), newProfilesIdentify(s), newProfilesShow(s), newProfilesImport(s),
		newProfilesExport(s), newProfilesForget(s))
	return c
}

func newProfilesList(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "The profiles that count for my jobs, a line each; for SlurmUser all", Args: cobra.NoArgs,
		Long: `list prints a line per profile: its user ("(all)" = the whole site), the GPU model that it
was measured on ("(any)" = imported), the number of solo runs ("-" = imported), the duration of a
run alone, the mean use of the GPU and the most of its memory, its script's sizes, and the source.

It reads the database; who may not read it asks the daemon, and gets their own and the site's.`,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			list, err := s.listing(c.Context(), cfg)
			if err != nil {
				return err
			}
			return s.Show(list, func() { s.listProfiles(list) })
		}),
	}
	askFlags(c)
	return c
}

// listing reads the database, or asks the daemon if the caller can't read it.
func (s *shared) listing(ctx context.Context, cfg *config.Config) (list []store.Listed, err error) {
	st, err := cli.StoreOrNone(ctx, cfg)
	switch {
	case err != nil:
		return nil, err
	case st == nil:
		err = ask(ctx, cfg, httpapi.ProfilesPath, &list)
		return list, err
	}
	defer st.Close()
	return st.Listing(ctx, "", true)
}

func (s *shared) listProfiles(list []store.Listed) {
	t := s.Table("", "application", "user", "GPU", "runs", "duration s", "GPU mean", "memory peak MiB", "sizes", "source")
	// What is long is wrapped, so that the figures stay on one line.
	t.SetColumnConfigs([]table.ColumnConfig{{Name: "source", WidthMax: 30}, {Name: "sizes", WidthMax: 30}})
	for i := range list {
		e := &list[i]
		p := e.Profile
		runs, duration := "-", fmt.Sprintf("%.0f", p.DurationS)
		if p.Runs > 0 {
			runs = fmt.Sprint(p.Runs)
		}
		if p.DurationSD > 0 {
			duration += fmt.Sprintf(" ± %.0f", p.DurationSD)
		}
		t.AppendRow(table.Row{
			p.App, cmp.Or(e.User, "(all)"), cmp.Or(p.Model, "(any)"), runs, duration, fmt.Sprintf("%.0f %%", 100*p.Mean().GPU),
			fmt.Sprintf("%.0f", p.Peak().MemMiB), sizesText(e.Sizes), p.Source,
		})
	}
	t.Render()
}

func sizesText(sizes []appid.Size) string {
	var out []string
	for _, z := range sizes {
		out = append(out, fmt.Sprintf("%s %g", z.Name, z.Value))
	}
	return strings.Join(out, ", ")
}

func newProfilesShow(s *shared) *cobra.Command {
	var who, card string
	c := &cobra.Command{
		Use: "show APP", Short: "One profile over time", Args: cobra.ExactArgs(1),
		Long: `show prints what an application uses when it runs alone, on average, at most and over
time: the fraction of time that the GPU is busy, memory, busy cores, and PCIe traffic.

For an application that was never seen it shows what the bridge takes it for: its
nearest relatives' profile at its size. The duration is then the late end of what is
thought, ± says how much earlier it may be over, and memory is what it may hold at
most, all the time. Where that is too uncertain there is none: the job runs alone.`,
		Example: "  slurmbridge profiles show lmp-3f9a1c2b04d1 --user ann",
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, args []string) error {
			v, err := s.findProfile(c.Context(), cfg, who, args[0], card)
			if err != nil {
				return err
			}
			on, _ := cfg.Spec(v.Profile.Model)
			return s.Show(v, func() { s.showProfile(v, on) })
		}),
	}
	askFlags(c)
	c.Flags().StringVar(&who, "user", "", "user of the profile (default: the site's; from the daemon: mine)")
	c.Flags().StringVar(&card, "card", "", "GPU model, as profiles list names it (default: where it is fastest)")
	return c
}

// shown is a profile with what is known around it.
type shown struct {
	User     string          `json:"user"`
	Relative bool            `json:"relative"` // made from relatives: it was never seen
	Family   string          `json:"family,omitempty"`
	Sizes    []appid.Size    `json:"sizes,omitempty"`
	Profile  *rlcore.Profile `json:"profile"`
	// Foretelling is how well its runs' lengths are foretold.
	Foretelling rlcore.Foretelling `json:"foretelling"`
}

// findProfile looks a profile on a card up as the bridge would, without a card on the one where it is fastest. Who may
// not read the database gets the daemon's, of applications that have run.
func (s *shared) findProfile(ctx context.Context, cfg *config.Config, user, app, card string) (*shown, error) {
	st, err := cli.StoreOrNone(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if st == nil {
		var list []store.Listed
		if err := ask(ctx, cfg, httpapi.ProfilesPath, &list); err != nil {
			return nil, err
		}
		return choose(list, user, app, card)
	}
	defer st.Close()
	p, unseen, err := st.Estimate(ctx, user, app, card)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w; slurmbridge profiles list says what is known, of whom", err)
	}
	if err != nil {
		return nil, err
	}
	a, err := st.Family(ctx, user, app)
	return &shown{user, unseen, a.Family, a.Sizes, p, p.Foretelling()}, err
}

// choose takes an application's profile from a list: a user's own before the site's, and the fastest.
func choose(list []store.Listed, user, app, card string) (*shown, error) {
	var best *store.Listed
	for i := range list {
		e := &list[i]
		if e.Profile.App != app || card != "" && e.Profile.Model != card || user != "" && e.User != user {
			continue
		}
		own := best == nil || best.User == "" && e.User != ""
		if own || (best.User == "") == (e.User == "") && e.Profile.DurationS < best.Profile.DurationS {
			best = e
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w: %s; slurmbridge profiles list says what is known, of whom", store.ErrNotFound, app)
	}
	return &shown{best.User, false, best.Family, best.Sizes, best.Profile, best.Profile.Foretelling()}, nil
}

// preallocates says what to do about an application that takes the card's memory at its start.
const preallocates = "it takes most of the card's memory at its start, so it can't share: let it take what it needs " +
	"(TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true, " +
	"JAX: XLA_PYTHON_CLIENT_PREALLOCATE=false), then slurmbridge profiles forget has it learned again; " +
	"or have one job try how it does with less (sbatch --comment=share:try-memory=8G)"

// showProfile shows a profile; card is what is known of its GPU.
func (s *shared) showProfile(v *shown, card rlcore.GPUSpec) {
	p := v.Profile
	s.printf("%s, %s: %s\n", p.App, cmp.Or(v.User, "(all)"), p.Source)
	if p.Model != "" {
		s.printf("on %s\n", p.Model)
	}
	switch {
	case v.Relative:
		s.printf("never seen; alone between %.0f and %.0f s, with at most %.0f MiB at any time\n",
			p.DurationS-p.DurationSD, p.DurationS, p.Peak().MemMiB)
	case p.Runs > 0:
		s.printf("alone %.1f s ± %.1f over %d runs\n", p.DurationS, p.DurationSD, p.Runs)
	default:
		s.printf("alone %.1f s ± %.1f\n", p.DurationS, p.DurationSD)
	}
	if f := v.Foretelling; f.Runs > 0 {
		s.printf("of the last %d runs, with time limits, %.0f %% were foretold within a factor of two; %.0f %% took "+
			"longer\n",
			f.Runs, 100*f.Within2, 100*f.Longer)
	}
	if sizes := sizesText(v.Sizes); sizes != "" {
		s.printf("sizes: %s (family %s)\n", sizes, v.Family)
	}
	switch {
	case p.Preallocating(card.MemMiB):
		s.printf("%s\n", preallocates)
	case p.HeldMiB > 0:
		s.printf("made do with a limit of %.0f MiB\n", p.HeldMiB)
	}
	s.drawProfile(p)
}

func newProfilesImport(s *shared) *cobra.Command {
	return &cobra.Command{
		Use: "import FILE...", Short: "Make profiles known from files, as the whole site's", Args: cobra.MinimumNArgs(1),
		Long: `import takes profiles from JSON as export writes it, or from CSV with the columns
app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms (percent 0-100,
empty = unknown; app, duration_s, gpu_util and mem_mib must be there). They count for
jobs with --comment=app=NAME, until a user's own runs say better. Nothing is taken if a
file has a mistake.`,
		Example: "  slurmbridge profiles import solo.csv",
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, files []string) error {
			all := []*rlcore.Profile{}
			for _, file := range files {
				ps, err := store.ReadProfiles(file)
				if err != nil {
					return err
				}
				all = append(all, ps...)
			}
			st, err := cli.OpenStore(c.Context(), cfg)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Import(c.Context(), all); err != nil {
				return err
			}
			return s.Show(map[string]int{"imported": len(all)}, func() { s.printf("%d profiles imported\n", len(all)) })
		}),
	}
}

func newProfilesExport(s *shared) *cobra.Command {
	var who string
	c := &cobra.Command{
		Use: "export FILE", Short: "Write profiles as JSON", Args: cobra.ExactArgs(1),
		Long: `export writes the whole site's profiles to FILE ("-" = standard output), with their
series, as import reads them; with --user that user's.`,
		RunE: s.Stored(func(c *cobra.Command, _ *config.Config, st *store.Store, args []string) error {
			list, err := st.Listing(c.Context(), who, false)
			if err != nil {
				return err
			}
			out := []*rlcore.Profile{}
			for _, e := range list {
				if e.User == who {
					out = append(out, e.Profile)
				}
			}
			return s.WriteJSON(args[0], out)
		}),
	}
	c.Flags().StringVar(&who, "user", "", "this user's profiles (default: the whole site's)")
	return c
}

func newProfilesForget(s *shared) *cobra.Command {
	var who string
	c := &cobra.Command{
		Use: "forget APP", Short: "Forget an application's profiles; it is learned again", Args: cobra.ExactArgs(1),
		Long: `forget removes an application's profiles, all users' and the site's, or one user's.
Records of its runs stay; its next job runs alone and is learned from.`,
		RunE: s.Stored(func(c *cobra.Command, _ *config.Config, st *store.Store, args []string) error {
			n, err := st.Forget(c.Context(), cmp.Or(who, "*"), args[0])
			if err != nil {
				return err
			}
			return s.Show(map[string]int64{"forgotten": n}, func() { s.printf("%d profiles forgotten\n", n) })
		}),
	}
	c.Flags().StringVar(&who, "user", "", "only this user's (default: all)")
	return c
}

// spanColumns is how many columns show a resource over time.
const spanColumns = 40

// drawProfile prints what a profile uses of each resource, on average, at most and over time.
func (s *shared) drawProfile(p *rlcore.Profile) {
	t := s.Table("", "", "mean", "peak", "unit", fmt.Sprintf("0 to %.0f s", p.DurationS))
	mean, peak := p.Mean(), p.Peak()
	for _, r := range []struct {
		name, unit string
		top        float64 // of the scale
		of         func(rlcore.Use) float64
	}{
		{"GPU", "%", 100, func(u rlcore.Use) float64 { return 100 * u.GPU }},
		{"memory", "MiB", peak.MemMiB, func(u rlcore.Use) float64 { return u.MemMiB }},
		{"cores", "%", 100, func(u rlcore.Use) float64 { return 100 * u.Core }},
		{"PCIe", "MB/s", peak.PCIeMBps, func(u rlcore.Use) float64 { return u.PCIeMBps }},
	} {
		var over strings.Builder
		for i := range spanColumns {
			over.WriteRune(bar(most(p, r.of, float64(i)/spanColumns, float64(i+1)/spanColumns), r.top))
		}
		t.AppendRow(table.Row{
			r.name, fmt.Sprintf("%.0f", r.of(mean)), fmt.Sprintf("%.0f", r.of(peak)), r.unit, over.String(),
		})
	}
	t.Render()
}

// most is the largest value between two parts of the run, 0 to 1: a peak must not fall between two columns.
func most(p *rlcore.Profile, of func(rlcore.Use) float64, from, to float64) float64 {
	m := 0.0
	last := p.Index(math.Nextafter(to*p.DurationS, 0))
	for i := p.Index(from * p.DurationS); i <= last; i++ {
		m = max(m, of(p.Series[i]))
	}
	return m
}

// bar draws a value of 0 to top in eighths.
func bar(v, top float64) rune {
	eighths := 0.0
	if top > 0 {
		eighths = math.Round(8 * v / top)
	}
	return []rune(" ▁▂▃▄▅▆▇█")[int(min(max(eighths, 0), 8))]
}
