package slurm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Shapes of the values an update may carry. They are compared before a command is made of them, so that nothing a user
// wrote can become an option or a second setting.
var (
	gresShape  = regexp.MustCompile(`^(gres[:/])?[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+){0,2}(,(gres[:/])?[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+){0,2})*$`)
	nodesShape = regexp.MustCompile(`^[A-Za-z0-9_.\[\],-]*$`)
	depShape   = regexp.MustCompile(`^[A-Za-z0-9_:,?+*]*$`) // "12_*" is all of array 12
)

// maxRefs is how many jobs a command names: far below any limit of a command line.
const maxRefs = 2000

// mostScontrols is how many scontrols change jobs at a time: more made no more updates a second on 22.05.8.
const mostScontrols = 4

// UpdateAll implements job.Slurm. Each update is one scontrol for all of its jobs, but for ReqNodes, which scontrol
// takes for one job at a time. The tasks of an array are changed in their order: the one that is changed last keeps the
// array's own record, which Slurm sorts last, and among equals it starts the first. Once a scontrol has hung, the rest
// isn't tried.
func (c *Client) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := make([]error, len(all))
	lanes := map[string][]int{} // by job or array: what is changed one after the other
	for i := range all {
		if errs[i] = checkUpdate(all[i]); errs[i] == nil && len(all[i].Jobs) > 0 && len(all[i].Words()) > 0 {
			first, _, _ := strings.Cut(all[i].Jobs[0], "_")
			lanes[first] = append(lanes[first], i)
		}
	}
	hung, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var g errgroup.Group
	g.SetLimit(mostScontrols)
	for _, lane := range lanes {
		g.Go(func() error {
			for _, i := range lane {
				errs[i] = c.updateOne(ctx, hung, stop, &all[i])
			}
			return nil
		})
	}
	_ = g.Wait()
	return errs
}

// updateOne makes an update unless a scontrol has hung; it says so if its own does.
func (c *Client) updateOne(ctx, hung context.Context, stop context.CancelCauseFunc, u *job.Update) error {
	most := maxRefs
	if u.ReqNodes != nil {
		most = 1
	}
	failed := job.JobErrors{}
	for refs := range slices.Chunk(u.Jobs, most) {
		err := context.Cause(hung)
		if err == nil {
			err = c.update(ctx, refs, u.Words())
		}
		if errors.Is(err, errNoAnswer) {
			stop(err)
		}
		failed.Add(err, refs)
	}
	return failed.Err()
}

// update changes jobs with one scontrol. Where Slurm names the jobs that it didn't change, the error is job.JobErrors.
func (c *Client) update(ctx context.Context, refs, words []string) error {
	if err := checkRefs("update", refs...); err != nil {
		return err
	}
	args := append([]string{"update", "JobId=" + strings.Join(refs, ",")}, words...)
	_, stderr, err := c.run(ctx, command{prog: "scontrol", args: args})
	named := ofJobs(stderr, refs)
	if err != nil && (len(named) == len(refs) || len(named) > 0 && !errors.Is(err, job.ErrDown)) {
		return named
	}
	return err
}

// ofJobs is what standard error says of jobs.
func ofJobs(stderr string, refs []string) job.JobErrors {
	named := job.JobErrors{}
	for ref, said := range text.UpdateErrors(stderr) {
		if slices.Contains(refs, ref) { // a plugin's words may look like an error of any job
			named[ref] = text.JobErrorOf(said)
		}
	}
	return named
}

func checkUpdate(u job.Update) error {
	if err := checkRefs("update", u.Jobs...); err != nil {
		return err
	}
	check := func(what string, value *string, shape *regexp.Regexp) error {
		if value != nil && !shape.MatchString(*value) {
			return fmt.Errorf("update: %s %q: %w", what, *value, job.ErrRefused)
		}
		return nil
	}
	if u.TimeLimit < 0 || u.TimeLimit%time.Minute != 0 {
		return fmt.Errorf("update: time limit %v is not in whole minutes: %w", u.TimeLimit, job.ErrRefused)
	}
	err := errors.Join(check("gres", u.Gres, gresShape), check("node list", u.ReqNodes, nodesShape),
		check("dependency", u.Dependency, depShape))
	if u.AdminComment != nil && strings.ContainsFunc(*u.AdminComment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		err = errors.Join(err, fmt.Errorf("update: admin comment %q: %w", *u.AdminComment, job.ErrRefused))
	}
	return err
}

// maxScript is the longest script that is read, bytes; Slurm takes none of more than 4 MiB unless max_script_size says
// so.
const maxScript = 16 << 20

// Script returns a job's batch script, the end of a long one as its hash; see job.ShortScript.
func (c *Client) Script(ctx context.Context, ref string) ([]byte, error) {
	if err := checkRefs("script", ref); err != nil {
		return nil, err
	}
	const name = "scontrol write batch_script"
	out, stderr, err := c.run(ctx, command{
		name: name, prog: "scontrol", args: []string{"write", "batch_script", ref, "-"},
		max: maxScript,
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 && stderr != "" { // 22.05 exits 0 when there is no such job
		return nil, &CommandError{Command: name, Stderr: text.OneLine(stderr), Kind: text.ErrorKind(stderr)}
	}
	return job.ShortScript(out), nil
}

// checkRefs refuses names that are no job's, so that no text can become an option or a second job.
func checkRefs(what string, refs ...string) error {
	for _, ref := range refs {
		if !text.ValidRef(ref) {
			return fmt.Errorf("%s: %q is no job: %w", what, ref, job.ErrNoJob)
		}
	}
	return nil
}

// Describe reads the state of jobs by name, including ended jobs that slurmctld still remembers
// (MinJobAge, 300 s by default). A forgotten job isn't in the answer.
func (c *Client) Describe(ctx context.Context, refs []string) (map[string]job.Description, error) {
	if err := checkRefs("describe", refs...); err != nil || len(refs) == 0 {
		return nil, err
	}
	out, err := c.ask(ctx, "squeue", "--noheader", "--all", "--array", "--local", "--states=all",
		"--jobs="+strings.Join(refs, ","), "--Format="+text.DescriptionFormat())
	if errors.Is(err, job.ErrNoJob) {
		return nil, nil // it has forgotten all of them
	}
	if err != nil {
		return nil, err
	}
	return text.ParseDescriptions(out)
}

// TaskName names the array task that has a number now, as in "120_4"; of any other job it is the number.
func (c *Client) TaskName(ctx context.Context, id int64) (string, error) {
	number := strconv.FormatInt(id, 10)
	out, err := c.ask(ctx, "squeue", "--noheader", "--all", "--array", "--local", "--jobs="+number,
		"--Format=jobarrayid:32,jobid:32")
	if errors.Is(err, job.ErrNoJob) {
		return number, nil
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == number && text.ValidRef(f[0]) {
			return f[0], err
		}
	}
	return number, err
}

// Requeue makes a batch job run again, from its beginning. Slurm may start it at once.
func (c *Client) Requeue(ctx context.Context, ref string) error {
	if err := checkRefs("requeue", ref); err != nil {
		return err
	}
	_, err := c.ask(ctx, "scontrol", "requeue", ref)
	return err
}
