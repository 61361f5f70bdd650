package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

// identified is a script and what the bridge sees in it.
type identified struct {
	Script string `json:"script"`
	Dir    string `json:"chdir"`
	appid.App
}

// pair is how two scripts are related.
type pair struct {
	One      string         `json:"one"`
	Two      string         `json:"two"`
	Relation appid.Relation `json:"relation"`
	Why      string         `json:"why"`
}

// mostPaired is how many scripts are compared each with each; of more, each with the first.
const mostPaired = 12

func newProfilesIdentify(s *shared) *cobra.Command {
	var dir, args, name, export string
	c := &cobra.Command{
		Use: "identify SCRIPT...", Short: "What the bridge sees in a job script, and which scripts are one application",
		Args: cobra.MinimumNArgs(1),
		Long: `identify says which application a job of SCRIPT is: its key, the program, its family and its sizes, what counts
and what doesn't, and why. Jobs of one application share by what its runs have shown; relatives differ in sizes alone,
and what is known of one is scaled to another. With several scripts it says how they are related.

It asks neither Slurm nor the database. The key is the daemon's if --chdir, --args, --job-name and --export are what
sbatch was given; #SBATCH lines count. Without --chdir a job is taken to be submitted from its script's folder.`,
		Example: `  slurmbridge profiles identify run.sh
  slurmbridge profiles identify small/run.sh large/run.sh
  slurmbridge profiles identify run.sh --chdir /scratch/ann/large --args '--size 128'`,
		RunE: s.Configured(func(_ *cobra.Command, cfg *config.Config, scripts []string) error {
			words, named := strings.Fields(args), ""
			for v := range strings.SplitSeq(export, ",") {
				if app, is := strings.CutPrefix(v, appVariable); is && appid.ValidName(app) {
					named = app
				} else if !is && strings.Contains(v, "=") {
					words = append(words, v)
				}
			}
			var all []identified
			for _, script := range scripts {
				body, err := os.ReadFile(filepath.Clean(script))
				if err != nil {
					return err
				}
				j := &job.Job{Name: cmp.Or(name, appid.Option(body, "job-name", "J")), Comment: appid.Option(body, "comment", "")}
				if j.WorkDir, err = folderOf(cmp.Or(dir, appid.Option(body, "chdir", "D"), filepath.Dir(script))); err != nil {
					return err
				}
				j.Note.App = named
				t := job.ParseTerms(j.Comment)
				all = append(all, identified{script, j.WorkDir, appid.Identify(&appid.Evidence{
					Named: job.AppNamed(j, &t, cfg.Apps()), Name: j.Name, Script: job.ShortScript(body), Args: job.NoteArgs(words),
					Dir: j.WorkDir,
				})})
			}
			pairs := related(all)
			return s.Show(map[string]any{"jobs": all, "pairs": pairs}, func() {
				for i := range all {
					s.showIdentified(&all[i])
				}
				for _, p := range pairs {
					fmt.Fprintf(s.Out, "%s and %s: %s\n  %s\n", p.One, p.Two, p.Relation, p.Why)
				}
			})
		}),
	}
	c.Flags().StringVar(&dir, "chdir", "", "the folder that the job starts in (default: the script's)")
	c.Flags().StringVar(&args, "args", "", "the script's arguments, separated by blanks")
	c.Flags().StringVar(&name, "job-name", "", "the job's name")
	c.Flags().StringVar(&export, "export", "", "variables as sbatch --export sets them, NAME=value,NAME=value")
	return c
}

// appVariable is how the environment names an application.
const appVariable = "SLURMBRIDGE_APP="

// folderOf is a folder as Slurm writes it.
func folderOf(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil // it is on another host, perhaps
}

func related(all []identified) []pair {
	out := []pair{}
	for i := range all {
		for j := i + 1; j < len(all) && (i == 0 || len(all) <= mostPaired); j++ {
			rel, why := appid.Compare(&all[i].App, &all[j].App)
			out = append(out, pair{all[i].Script, all[j].Script, rel, why})
		}
	}
	return out
}

func (s *shared) showIdentified(a *identified) {
	fmt.Fprintln(s.Out, a.Script)
	line := func(label, text string) {
		if text != "" {
			fmt.Fprintf(s.Out, "  %-12s %s\n", label, text)
		}
	}
	line("application", cmp.Or(a.Key, "not known: such a job runs alone, unless its owner names its application"))
	line("program", a.Name)
	line("family", a.Family)
	line("sizes", sizesText(a.Sizes))
	line("folder", a.Dir)
	for _, why := range a.Why {
		line("", why)
	}
	seen := map[appid.Masked]bool{}
	for _, m := range a.Masked {
		if !seen[m] {
			line("not counted", m.Text+": "+m.Why)
		}
		seen[m] = true
	}
}
