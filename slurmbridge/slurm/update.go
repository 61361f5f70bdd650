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

// Shapes of the values in an update, so that no text of a user can become an option or a second setting.
var (
	gresShape  = regexp.MustCompile(`^(gres[:/])?[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+){0,2}(,(gres[:/])?[a-z][a-z0-9_]*(:[A-Za-z0-9_.-]+){0,2})*$`)
	nodesShape = regexp.MustCompile(`^[A-Za-z0-9_.\[\],-]*$`)
	depShape   = regexp.MustCompile(`^[A-Za-z0-9_:,?+*]*$`) // "12_*" is all of array 12
)

// maxRefs bounds the jobs that a command names, far below any limit on command lines.
const maxRefs = 2000

// mostScontrols is the number of concurrent scontrols: with more of them 22.05.8 made no more updates a second.
const mostScontrols = 4

// UpdateAll implements job.Slurm. Each update is one scontrol for all of its jobs, except ReqNodes, which scontrol
// changes for one job at a time. Tasks of an array are changed in order: the last task changed keeps the array's own
// record, which Slurm sorts last, and of equal tasks Slurm starts the first. After a scontrol has hung, none is tried.
func (c *Client) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := make([]error, len(all))
	lanes := map[string][]int{} // updates to make in sequence, by job or array
	for i := range all {
		errs[i] = checkUpdate(all[i])
		if errs[i] == nil && len(all[i].Jobs) > 0 && len(all[i].Words()) > 0 {
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

// updateOne makes an update, unless hung is cancelled. It calls stop, which cancels hung, if its own scontrol hangs.
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

// update changes jobs with one scontrol. If Slurm names the jobs that it didn't change, the error is job.JobErrors.
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

// ofJobs returns the errors of the jobs that standard error names.
func ofJobs(stderr string, refs []string) job.JobErrors {
	named := job.JobErrors{}
	for ref, said := range text.UpdateErrors(stderr) {
		if slices.Contains(refs, ref) { // a plugin's message may look like an error of any job
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

// maxScript bounds the script that is read, in bytes. Slurm's own limit is 4 MiB, or max_script_size.
const maxScript = 16 << 20

// Script returns a job's batch script, shortened by job.ShortScript.
func (c *Client) Script(ctx context.Context, ref string) ([]byte, error) {
	if err := checkRefs("script", ref); err != nil {
		return nil, err
	}
	const name = "scontrol write batch_script"
	args := []string{"write", "batch_script", ref, "-"}
	out, stderr, err := c.run(ctx, command{name: name, prog: "scontrol", args: args, max: maxScript})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 && stderr != "" { // for an unknown job 22.05 exits with 0
		return nil, &CommandError{Command: name, Stderr: text.OneLine(stderr), Kind: text.ErrorKind(stderr)}
	}
	return job.ShortScript(out), nil
}

// checkRefs refuses names that aren't jobs, so that no text can become an option or a second job.
func checkRefs(what string, refs ...string) error {
	for _, ref := range refs {
		if !text.ValidRef(ref) {
			return fmt.Errorf("%s: %q is not a job: %w", what, ref, job.ErrNoJob)
		}
	}
	return nil
}

// Describe reads the state of jobs by name, including ended jobs that slurmctld remembers (MinJobAge, 300 s by
// default). The answer lacks jobs that slurmctld has forgotten.
func (c *Client) Describe(ctx context.Context, refs []string) (map[string]job.Description, error) {
	if err := checkRefs("describe", refs...); err != nil || len(refs) == 0 {
		return nil, err
	}
	out, err := c.ask(ctx, "squeue", "--noheader", "--all", "--array", "--local", "--states=all",
		"--jobs="+strings.Join(refs, ","), "--Format="+text.DescriptionFormat())
	if errors.Is(err, job.ErrNoJob) {
		return nil, nil // slurmctld has forgotten all of the jobs
	}
	if err != nil {
		return nil, err
	}
	return text.ParseDescriptions(out)
}

// TaskName returns the name of the array task with this job number, e.g. "120_4"; for other jobs, the number.
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

// Requeue makes a batch job run again from its beginning. Slurm may start it at once.
func (c *Client) Requeue(ctx context.Context, ref string) error {
	if err := checkRefs("requeue", ref); err != nil {
		return err
	}
	_, err := c.ask(ctx, "scontrol", "requeue", ref)
	return err
}
