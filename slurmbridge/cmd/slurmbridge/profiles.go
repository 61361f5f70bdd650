package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/gpuprof/store"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

func newProfiles(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "profiles",
		Short: "What applications use of a GPU: list, show, import, export, forget",
		Long: `profiles shows and changes what the bridge knows of applications. A user's own runs
make that user's profiles; imported ones are everybody's, until a user's own runs
say better.`,
	}
	with := func(do func(c *cobra.Command, st *store.Store, args []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			cfg, err := s.load(c)
			if err != nil {
				return err
			}
			st, err := openStore(c.Context(), cfg, slog.New(slog.NewTextHandler(s.errOut, nil)))
			if err != nil {
				return err
			}
			defer st.Close()
			return do(c, st, args)
		}
	}
	list := &cobra.Command{Use: "list", Short: "All profiles, a line each", Args: cobra.NoArgs, RunE: with(func(c *cobra.Command, st *store.Store, _ []string) error {
		entries, err := st.List(c.Context())
		if err != nil {
			return err
		}
		if s.json {
			return s.printJSON(entries)
		}
		t := table.NewWriter()
		t.SetOutputMirror(s.out)
		t.SetStyle(table.StyleLight)
		t.AppendHeader(table.Row{"application", "user", "runs", "duration s", "GPU mean", "memory peak MiB", "source"})
		for _, e := range entries {
			who := e.User
			if who == "" {
				who = "(all)"
			}
			p := e.Profile
			t.AppendRow(table.Row{p.App, who, p.Runs, fmt.Sprintf("%.0f", p.DurationS), fmt.Sprintf("%.0f %%", 100*p.Mean().GPU), fmt.Sprintf("%.0f", p.Peak().MemMiB), p.Source})
		}
		t.Render()
		return nil
	})}
	var who string
	show := &cobra.Command{Use: "show APP", Short: "One profile over time", Args: cobra.ExactArgs(1), RunE: with(func(c *cobra.Command, st *store.Store, args []string) error {
		p, err := st.Lookup(c.Context(), who, args[0])
		if err != nil {
			return err
		}
		if s.json {
			return s.printJSON(p)
		}
		showProfile(s.out, p)
		return nil
	})}
	show.Flags().StringVar(&who, "user", "", "whose profile (default: everybody's)")
	imp := &cobra.Command{
		Use: "import FILE...", Short: "Make profiles known to the whole site",
		Long: `import reads profiles from JSON (as export writes them) or CSV with the columns
app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms (percent 0-100,
empty = unknown). A file is taken whole or not at all.`,
		Args: cobra.MinimumNArgs(1), RunE: with(func(c *cobra.Command, st *store.Store, args []string) error {
			n := 0
			for _, file := range args {
				ps, err := store.ReadProfiles(file)
				if err != nil {
					return err
				}
				if err := st.Import(c.Context(), ps); err != nil {
					return err
				}
				n += len(ps)
			}
			fmt.Fprintf(s.out, "%d profiles imported\n", n)
			return nil
		}),
	}
	var builtin bool
	exp := &cobra.Command{
		Use: "export FILE", Short: "Write the site's profiles as JSON",
		Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, args []string) error {
			var out []*rlcore.Profile
			if builtin {
				for _, name := range apps.Names() {
					p, _ := apps.ByName(name)
					out = append(out, p)
				}
				return writeProfiles(args[0], out)
			}
			return with(func(c *cobra.Command, st *store.Store, args []string) error {
				entries, err := st.List(c.Context())
				if err != nil {
					return err
				}
				for _, e := range entries {
					if e.User == "" {
						out = append(out, e.Profile)
					}
				}
				return writeProfiles(args[0], out)
			})(c, args)
		},
	}
	exp.Flags().BoolVar(&builtin, "builtin", false, "the thesis's eleven applications on a Titan Xp instead of the site's own")
	forget := &cobra.Command{Use: "forget APP", Short: "Forget an application's profiles; it is learned anew", Args: cobra.ExactArgs(1), RunE: with(func(c *cobra.Command, st *store.Store, args []string) error {
		whose := who
		if whose == "" {
			whose = "*"
		}
		n, err := st.Forget(c.Context(), whose, args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%d profiles forgotten\n", n)
		return nil
	})}
	forget.Flags().StringVar(&who, "user", "", "only this user's (default: all)")
	c.AddCommand(list, show, imp, exp, forget)
	return c
}

func writeProfiles(path string, ps []*rlcore.Profile) error {
	body, err := json.MarshalIndent(ps, "", " ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(body, '\n'), 0o644)
}

// showProfile draws the four resources over time, 60 columns wide.
func showProfile(w io.Writer, p *rlcore.Profile) {
	fmt.Fprintf(w, "%s: %.1f s ± %.1f over %d runs, %s\n", p.App, p.DurationS, p.DurationSD, p.Runs, p.Source)
	peak := p.Peak()
	const width = 60
	bars := []rune(" ▁▂▃▄▅▆▇█")
	for _, r := range []struct {
		name, unit string
		top        float64
		of         func(rlcore.Use) float64
	}{
		{"GPU", "%", 100, func(u rlcore.Use) float64 { return 100 * u.GPU }},
		{"memory", "MiB", peak.MemMiB, func(u rlcore.Use) float64 { return u.MemMiB }},
		{"cores", "%", 100, func(u rlcore.Use) float64 { return 100 * u.Core }},
		{"PCIe", "MB/s", peak.PCIeMBps, func(u rlcore.Use) float64 { return u.PCIeMBps }},
	} {
		var line strings.Builder
		most := 0.0
		for i := range width {
			v := r.of(p.At((float64(i) + 0.5) / width * p.DurationS))
			most = max(most, v)
			k := 0
			if r.top > 0 {
				k = int(v/r.top*float64(len(bars)-1) + 0.5)
			}
			line.WriteRune(bars[min(max(k, 0), len(bars)-1)])
		}
		fmt.Fprintf(w, "%-7s|%s| peak %.0f %s\n", r.name, line.String(), most, r.unit)
	}
}
