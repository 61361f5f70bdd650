package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/profimport"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

type importing struct {
	sacct, prometheus, scripts string
	label, zone, start, end    string
	step                       time.Duration
	runs                       int
	dry                        bool
}

type imported struct {
	Profiles []store.Imported `json:"profiles"`
	// Kept counts the profiles that were not imported, since the user's own runs are better
	// evidence.
	Kept     int           `json:"kept"`
	LeftOut  table.Skipped `json:"left_out"`
	ByName   int           `json:"by_job_name"`
	FromJobs int           `json:"jobs"`
}

func newProfilesImport(s *shared) *cobra.Command {
	var in importing
	c := &cobra.Command{
		Use:   "import [FILE...]",
		Short: "Make profiles known from files, Slurm's accounting, or Prometheus",
		Long: `import spares a site the first run alone of what it has recorded already.

FILE is JSON as export writes it, or CSV with the columns
app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms (percent 0-100,
empty = unknown; app, duration_s, gpu_util and mem_mib must be there). These are the
whole site's.

--sacct FILE ("-" = standard input) is what Slurm's accounting says, where
AccountingStorageTRES has gres/gpu and AcctGatherType records it:

  sacct --parsable2 --allusers --starttime=2026-01-01 --format=` + profimport.SacctFormat + `

Memory is the largest that was sampled. gres/gpuutil is the last sample, so rather a
hint; SM use and PCIe aren't recorded. Each user's jobs make that user's profiles.

--prometheus URL asks a Prometheus server for each of these jobs: dcgm-exporter's
series by their label hpc_job (--job-label), nvidia_gpu_exporter's by node, where the
node has one GPU. --prometheus FILE reads saved answers of /api/v1/query_range, one
after the other. Without --prometheus accounting alone counts.

--scripts DIR holds the jobs' scripts as JOBID or JOBID.sh (sacct --batch-script -j
JOBID prints them where AccountingStoreFlags=job_script): then a profile is found by
the script, and by other sizes of it. Without, it is named after the job and counts
for jobs with --comment=app=NAME.

Only whole single GPUs of completed jobs count, and only with their memory known; the
rest is counted by its reason. What the bridge measures itself takes an import's
place. A file is taken whole or not at all.`,
		Example: `  slurmbridge profiles import solo.csv
  sacct -P -a -S now-30days -o ` + profimport.SacctFormat + ` |
    slurmbridge profiles import --sacct - --prometheus http://prometheus:9090 --dry-run`,
		RunE: func(c *cobra.Command, args []string) error {
			out, err := in.read(c.Context(), args)
			if err != nil {
				return err
			}
			if !in.dry {
				if err := s.WithStore(c, func(st *store.Store) error {
					out.Kept, err = st.ImportFor(c.Context(), out.Profiles)
					return err
				}); err != nil {
					return err
				}
			}
			return s.Show(out, func() { in.print(s, out) })
		},
	}
	f := c.Flags()
	f.StringVar(&in.sacct, "sacct", "", "what sacct --parsable2 printed")
	f.StringVar(&in.prometheus, "prometheus", "", "a server's address, or a file with its answers; needs --sacct")
	f.StringVar(&in.scripts, "scripts", "", "folder of the jobs' scripts")
	f.StringVar(&in.label, "job-label", "hpc_job", "the label that names the job")
	f.StringVar(&in.zone, "time-zone", "Local", "zone of sacct's times")
	f.StringVar(&in.start, "start", "", "only jobs that started then or later, e.g. 2026-01-31 or 2026-01-31T12:00:00")
	f.StringVar(&in.end, "end", "", "only jobs that ended by then")
	f.DurationVar(&in.step, "step", 15*time.Second, "shortest time between two samples to ask for")
	f.IntVar(&in.runs, "runs", 20, "newest runs of an application to ask the server for")
	f.BoolVar(&in.dry, "dry-run", false, "show what would be imported, change nothing")
	return c
}

func (in *importing) read(ctx context.Context, files []string) (*imported, error) {
	if in.prometheus != "" && in.sacct == "" {
		return nil, cli.Usage(errors.New("--prometheus needs --sacct: whose a job was, and when it ran, stands there"))
	}
	if len(files) == 0 && in.sacct == "" {
		return nil, cli.Usage(errors.New("nothing to import: name a FILE or --sacct; see slurmbridge profiles import --help"))
	}
	out := &imported{Profiles: []store.Imported{}, LeftOut: table.Skipped{}}
	for _, file := range files {
		ps, err := store.ReadProfiles(file)
		if err != nil {
			return nil, err
		}
		for _, p := range ps {
			out.Profiles = append(out.Profiles, store.Imported{App: appid.App{Key: p.App}, Profile: p})
		}
	}
	if in.sacct == "" {
		return out, nil
	}
	jobs, err := in.jobs()
	if err != nil {
		return nil, err
	}
	name, err := in.namer()
	if err != nil {
		return nil, err
	}
	runs, skipped, err := in.join(ctx, jobs, name)
	if err != nil {
		return nil, err
	}
	for i := range runs {
		if name(runs[i].Job).Key == "" {
			out.ByName++
		}
	}
	out.LeftOut, out.FromJobs = skipped, len(runs)
	out.Profiles = append(out.Profiles, profimport.Profiles(runs, name)...)
	return out, nil
}

// jobs reads accounting, and leaves out what is outside of --start and --end.
func (in *importing) jobs() ([]profimport.Job, error) {
	loc, err := time.LoadLocation(in.zone)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--time-zone: %w", err))
	}
	var from, to time.Time
	for _, f := range []struct {
		flag, text string
		into       *time.Time
	}{{"--start", in.start, &from}, {"--end", in.end, &to}} {
		if f.text == "" {
			continue
		}
		if *f.into, err = moment(time.Now().In(loc), f.text); err != nil {
			return nil, cli.Usage(fmt.Errorf("%s: %w", f.flag, err))
		}
	}
	r, name := io.Reader(os.Stdin), "standard input"
	if in.sacct != "-" {
		f, err := os.Open(filepath.Clean(in.sacct))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, name = f, in.sacct
	}
	jobs, err := profimport.ReadSacct(r, name, loc)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(jobs, func(j profimport.Job) bool {
		return !from.IsZero() && j.Start.Before(from) || !to.IsZero() && (j.End.IsZero() || j.End.After(to))
	}), nil
}

// maxScript is as much of a script as is read, bytes.
const maxScript = 1 << 20

// namer recognises a job by its script, where there is one. Nothing outside of the
// folder is read.
func (in *importing) namer() (profimport.Namer, error) {
	if in.scripts == "" {
		return func(*profimport.Job) appid.App { return appid.App{} }, nil
	}
	root, err := os.OpenRoot(in.scripts)
	if err != nil {
		return nil, fmt.Errorf("--scripts: %w", err)
	}
	seen := map[string]appid.App{}
	return func(j *profimport.Job) appid.App {
		a, ok := seen[j.RawID]
		for _, file := range []string{j.RawID, j.RawID + ".sh"} {
			if ok {
				break
			}
			f, err := root.Open(file)
			if err != nil {
				continue // named after the job, then
			}
			if info, err := f.Stat(); err == nil && info.Mode()&fs.ModeType == 0 {
				body, err := io.ReadAll(io.LimitReader(f, maxScript))
				if err == nil {
					a, ok = appid.Identify("", title.ReplaceAll(body, nil), ""), true
				}
			}
			f.Close()
		}
		seen[j.RawID] = a
		return a
	}, nil
}

// title is what sacct prints above a script.
var title = regexp.MustCompile(`^Batch Script for [^\n]*\n-+\n`)

// labelName is what Prometheus takes for a label.
var labelName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (in *importing) join(ctx context.Context, jobs []profimport.Job, name profimport.Namer) ([]profimport.Run, table.Skipped, error) {
	if in.prometheus == "" {
		runs, skipped := profimport.FromSacct(jobs)
		return runs, skipped, nil
	}
	if !labelName.MatchString(in.label) {
		return nil, nil, cli.Usage(fmt.Errorf("--job-label: %.40q is no label's name", in.label))
	}
	if !strings.HasPrefix(in.prometheus, "http://") && !strings.HasPrefix(in.prometheus, "https://") {
		f, err := os.Open(filepath.Clean(in.prometheus))
		if err != nil {
			return nil, nil, err
		}
		defer f.Close()
		series, err := profimport.ReadPrometheus(f, in.prometheus)
		if err != nil {
			return nil, nil, err
		}
		runs, skipped := profimport.Join(jobs, profimport.NewIndex(series, in.label))
		return runs, skipped, nil
	}
	base, err := url.Parse(in.prometheus)
	if err != nil || base.Host == "" {
		return nil, nil, cli.Usage(errors.New("--prometheus is no address like http://prometheus:9090"))
	}
	server := &profimport.Server{URL: base, Step: in.step, Label: in.label}
	jobs, skipped := in.newest(jobs, name)
	var runs []profimport.Run
	for i := range jobs {
		var x *profimport.Index
		if profimport.Usable(&jobs[i]) {
			series, err := server.Job(ctx, &jobs[i])
			if err != nil {
				return nil, nil, err
			}
			x = profimport.NewIndex(series, in.label)
		}
		// A run points at its job, and so into jobs.
		got, left := profimport.Join(jobs[i:i+1], x)
		runs = append(runs, got...)
		for why, n := range left {
			skipped[why] += n
		}
	}
	return runs, skipped, nil
}

// newest leaves of each user's application its newest usable runs.
func (in *importing) newest(jobs []profimport.Job, name profimport.Namer) ([]profimport.Job, table.Skipped) {
	slices.SortStableFunc(jobs, func(a, b profimport.Job) int { return b.Start.Compare(a.Start) })
	skipped, count := table.Skipped{}, map[[2]string]int{}
	return slices.DeleteFunc(jobs, func(j profimport.Job) bool {
		if !profimport.Usable(&j) {
			return false
		}
		k := [2]string{j.User, cmp.Or(name(&j).Key, j.Name)}
		count[k]++
		if count[k] > max(in.runs, 1) {
			skipped["older than the newest --runs"]++
			return true
		}
		return false
	}), skipped
}

func (in *importing) print(s *shared, out *imported) {
	entries := make([]store.Entry, len(out.Profiles))
	for i, p := range out.Profiles {
		entries[i] = store.Entry{User: p.User, Profile: p.Profile}
	}
	if in.dry {
		listProfiles(s.Out, entries, nil)
		fmt.Fprintf(s.Out, "%d profiles would be imported\n", len(entries))
	} else {
		fmt.Fprintf(s.Out, "%d profiles imported\n", len(entries)-out.Kept)
	}
	if out.Kept > 0 {
		fmt.Fprintf(s.Out, "%d not taken: the users' own runs say better\n", out.Kept)
	}
	if out.LeftOut.Total() > 0 {
		fmt.Fprintf(s.Out, "jobs left out: %s\n", out.LeftOut)
	}
	if out.ByName > 0 {
		fmt.Fprintf(s.Out, "%d of %d jobs are known by name only: their profiles count for jobs with --comment=app=NAME; --scripts ties them to scripts\n", out.ByName, out.FromJobs)
	}
}
