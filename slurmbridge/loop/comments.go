package loop

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/comment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// mostWritten bounds the updates of comments in one tick.
const mostWritten = 20

// comments writes jobs' AdminComments. Admins and tools may write them at any time (scancel --admin-comment, from 25.11
// on): the bridge reads a comment again before it writes, and never replaces another's.
type comments struct {
	slurm   job.Slurm
	metrics *Metrics
	now     func() time.Time
	log     *slog.Logger

	jobs map[string]*job.Job // as they were last read
	said map[string]string   // what the bridge wrote last, without the note of the job's defaults
}

// look reads a poll's jobs, and forgets the comments of jobs that are gone.
func (c *comments) look(jobs []job.Job) {
	c.jobs = make(map[string]*job.Job, len(jobs))
	for i := range jobs {
		c.jobs[jobs[i].Ref] = &jobs[i]
	}
	maps.DeleteFunc(c.said, func(ref, _ string) bool { return c.jobs[ref] == nil })
}

// readAgain reads jobs again before they are changed. edited holds those with a field, of the fields that the bridge
// may set, that somebody has changed since the last read. Jobs that can't be read count as unchanged.
func (c *comments) readAgain(ctx context.Context, refs []string) (edited map[string]bool) {
	jobs, err := c.slurm.Jobs(ctx, refs)
	if err != nil {
		c.log.Warn("jobs not read again before they are changed", "err", err)
	}
	edited = map[string]bool{}
	for i := range jobs {
		is := &jobs[i]
		was := c.jobs[is.Ref]
		if was == nil {
			continue
		}
		edited[is.Ref] = isEdited(was, is)
		c.jobs[is.Ref] = is
	}
	return edited
}

// isEdited reports whether two reads of a job in one state differ in a field that the bridge may set.
func isEdited(was, is *job.Job) bool {
	return is.State == was.State && (is.Request.Raw != was.Request.Raw || is.ReqNodes != was.ReqNodes ||
		is.Dependency.Raw != was.Dependency.Raw || !is.Eligible.Equal(was.Eligible) || is.TimeLimit != was.TimeLimit ||
		(is.Priority == 0) != (was.Priority == 0))
}

// foreign reports whether a job has an AdminComment that the bridge didn't write.
func (c *comments) foreign(ref string) bool {
	j := c.jobs[ref]
	return j != nil && j.AdminComment != "" && !strings.HasPrefix(j.AdminComment, job.CommentPrefix)
}

// written returns a job's AdminComment.
func (c *comments) written(ref string) string {
	said, wrote := c.said[ref]
	if wrote || c.jobs[ref] == nil {
		return said
	}
	return c.jobs[ref].AdminComment
}

// write explains in jobs' AdminComments what became of the jobs, a few at a time, and only where the present comment is
// the bridge's. It comes last in a tick, so that nothing waits for it.
func (c *comments) write(ctx context.Context, p *job.Plan, in *plan.Input) {
	texts := comment.Texts(p, in, c.written)
	maps.DeleteFunc(texts, func(ref, text string) bool {
		return c.jobs[ref] == nil || c.foreign(ref) || c.written(ref) == text
	})
	c.readAgain(ctx, slices.Collect(maps.Keys(texts)))
	byText := map[string][]string{}
	for ref, text := range texts {
		if !c.foreign(ref) {
			text = c.jobs[ref].Note.Comment(strings.TrimPrefix(text, job.CommentPrefix))
			byText[text] = append(byText[text], ref)
		}
	}
	var updates []job.Update
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		if len(updates) == mostWritten {
			break // the next tick continues
		}
		updates = append(updates, job.Update{Jobs: slices.Sorted(slices.Values(byText[text])), AdminComment: &text})
	}
	for i, err := range c.slurm.UpdateAll(ctx, updates) {
		u := &updates[i]
		c.metrics.changed(string(job.StepComment), err)
		in.Tracker.Sent(&job.Change{Step: job.StepComment, Update: *u}, err, c.now())
		if err != nil && !errors.Is(err, job.ErrNoJob) {
			c.log.Debug("admin comment refused", "jobs", strings.Join(u.Jobs, ","), "err", err)
		}
		c.wrote(u.Jobs, *u.AdminComment) // even if refused: it isn't worth a second try
	}
}

// spareForeign removes from changes the AdminComments of jobs that have another's comment.
func (c *comments) spareForeign(all []job.Change) {
	for i := range all {
		u := &all[i].Update
		if slices.ContainsFunc(u.Jobs, c.foreign) {
			u.AdminComment = nil
		}
	}
}

// wrote notes the AdminComments that were written.
func (c *comments) wrote(refs []string, text string) {
	_, text = job.ParseNote(text)
	for _, ref := range refs {
		c.said[ref] = text
	}
}
