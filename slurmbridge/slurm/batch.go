package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"

	"golang.org/x/sync/errgroup"
)

// Bounds of one scontrol that reads its commands from standard input. A release that was built
// without readline takes a line of 4,095 bytes for the end.
const (
	maxLines    = 50
	maxLine     = 4000
	fewLines    = 16 // no second scontrol for less
	mostBatches = 4  // scontrols at a time
	batchSlow   = 3  // multiples of the time that one command may take
	prompt      = "scontrol: "
	batchName   = "scontrol updates"
	batchInput  = "INPUTRC=/dev/null" // nobody's key bindings
)

// line is one command of a batch.
type line struct {
	of   int    // the update
	text string // with its newline
	lane string // lines of one lane keep their order
}

// UpdateAll implements job.Slurm: a scontrol that reads commands from its standard input makes an
// update in a third of the time of one that is started for it, and in a tenth of the CPU's.
// What can't be said there, a value with quotes or beyond ASCII, has a command of its own.
func (c *Client) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := make([]error, len(all))
	var lines []line
	for i, u := range all {
		if errs[i] = checkUpdate(u); errs[i] != nil {
			continue
		}
		one, ok := linesOf(i, u)
		if !ok || c.noBatch.Load() {
			errs[i] = c.Update(ctx, u)
			continue
		}
		lines = append(lines, one...)
	}
	if len(lines) == 1 {
		errs[lines[0].of] = c.Update(ctx, all[lines[0].of])
		return errs
	}
	for _, at := range c.batches(ctx, all, lines, errs) {
		errs[at] = c.Update(ctx, all[at])
	}
	return errs
}

// linesOf are the lines that make an update. false: it can't be made so.
func linesOf(at int, u job.Update) ([]line, bool) {
	set, quotes := settings(u), 0
	if u.AdminComment != nil && strings.Contains(*u.AdminComment, " ") {
		// Slurm keeps the quotes; Describe takes them off.
		set[len(set)-1], quotes = `AdminComment="`+*u.AdminComment+`"`, 2
	}
	var out []line
	for _, refs := range listsOf(u, maxLine/32) { // a list of jobs costs a third of as many lines
		array, _, _ := strings.Cut(refs[0], "_")
		update := "update JobId=" + strings.Join(refs, ",") + " " + strings.Join(set, " ") + "\n"
		if len(update) > maxLine || !sayable(update, quotes) {
			return nil, false
		}
		out = append(out, line{of: at, lane: array, text: update})
	}
	return out, true
}

// sayable reports whether a line comes through as it is: scontrol splits it at spaces outside of
// quotes, and readline takes bytes beyond ASCII for keys.
func sayable(text string, quotes int) bool {
	return strings.Count(text, `"`) == quotes &&
		!strings.ContainsFunc(strings.TrimSuffix(text, "\n"), func(r rune) bool { return r < ' ' || r > '~' })
}

// batches gives the lines to a few scontrols and stores the updates' results in errs. It returns
// the updates with unknown results.
func (c *Client) batches(ctx context.Context, all []job.Update, lines []line, errs []error) []int {
	workers := min(mostBatches, max(1, len(lines)/fewLines))
	shares := make([][]line, workers)
	of := map[string]int{}
	for i, l := range lines {
		w, known := of[l.lane]
		if !known {
			w = i * workers / len(lines)
			of[l.lane] = w
		}
		shares[w] = append(shares[w], l)
	}
	type answer struct {
		lines []line
		said  map[string]string // of jobs
		err   error
	}
	answers := make([][]answer, workers)
	var g errgroup.Group
	for w, share := range shares {
		g.Go(func() error {
			for chunk := range slices.Chunk(share, maxLines) {
				said, err := c.batch(ctx, all, chunk)
				answers[w] = append(answers[w], answer{chunk, said, err})
			}
			return nil
		})
	}
	_ = g.Wait()
	failed := map[int][]error{}
	var unsaid []int
	for _, a := range slices.Concat(answers...) {
		if errors.Is(a.err, errNotRead) {
			for _, l := range a.lines {
				unsaid = append(unsaid, l.of)
			}
			continue
		}
		for _, l := range a.lines {
			failed[l.of] = append(failed[l.of], a.err)
		}
		for ref, what := range a.said {
			for _, l := range a.lines {
				if slices.Contains(all[l.of].Jobs, ref) {
					failed[l.of] = append(failed[l.of], refused(ref, what))
					break
				}
			}
		}
	}
	for at, all := range failed {
		errs[at] = worst(all)
	}
	slices.Sort(unsaid)
	return slices.Compact(unsaid)
}

func refused(ref, what string) error {
	return &UpdateError{
		CommandError: &CommandError{
			Command: batchName, Code: 1, Stderr: what + " for job " + ref,
			Kind: text.ErrorKind(what),
		},
		Jobs: map[string]string{ref: what},
	}
}

// errNotRead says that scontrol didn't ask for each of its lines.
var errNotRead = errors.New("scontrol doesn't read commands from its standard input as it did")

// batch has one scontrol make the lines. It returns what Slurm said of jobs, or the error of all
// lines.
func (c *Client) batch(ctx context.Context, all []job.Update, lines []line) (map[string]string, error) {
	var in strings.Builder
	for _, l := range lines {
		in.WriteString(l.text)
	}
	out, stderr, err := c.run(ctx, command{
		name: batchName, prog: "scontrol", stdin: in.String(),
		env: []string{batchInput}, slow: batchSlow * c.timeout(),
	})
	var ce *CommandError
	if err != nil && (!errors.As(err, &ce) || ce.Code < 0) {
		return nil, err
	}
	if bytes.Count(out, []byte(prompt)) < len(lines) { // one prompt for each line that was read
		if err == nil { // else it may have been the configuration, for a moment
			c.noBatch.Store(true)
		}
		return nil, errNotRead
	}
	if err == nil {
		return nil, nil
	}
	said := text.UpdateErrors(stderr)
	maps.DeleteFunc(said, func(ref, _ string) bool { // a plugin's words may look like an error of any job
		return !slices.ContainsFunc(lines, func(l line) bool { return slices.Contains(all[l.of].Jobs, ref) })
	})
	if unexplained(stderr, len(said) > 0) {
		return said, fmt.Errorf("of some job among many: %w", err)
	}
	return said, nil
}

// unexplained reports whether standard error leaves it open which updates failed. If it names jobs,
// other messages of scontrol, about its configuration say, are no failures.
func unexplained(stderr string, named bool) bool {
	for _, l := range text.Messages(stderr) {
		if len(text.UpdateErrors(l)) == 0 && !(named && strings.HasPrefix(l, prompt)) {
			return true
		}
	}
	return !named
}
