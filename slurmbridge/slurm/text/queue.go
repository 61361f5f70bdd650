package text

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"unique"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A poll of the queue is one squeue with our own format, of -O's fields: unlike -o's they include --gpus.
//
// A row starts with the job's number and a nonce. The fields that only Slurm writes follow, separated by '|', and then
// the fields that may contain text of users (accounts, features and comments may have any characters, including line
// breaks), each followed by the nonce. A new nonce is drawn for each poll and passed in the environment, where other
// users can't read it, so no user's text can end a field or begin a row.

// Positions of the fields that '|' ends; the nonce ends the last one.
const (
	pArray = iota
	pTask
	pHet
	pUID
	pUser
	pPartition
	pState
	pPriority
	pSubmit
	pEligible
	pStart
	pLimit
	pDeadline
	pNodes
	pCPUs
	pTRES
	pRequeue
	pExclusive // the name depends on the release; see exclusiveField
	pNodeList
	numPlain
)

var plain = [numPlain]string{
	"arrayjobid", "arraytaskid", "hetjobid", "userid", "username", "partition",
	"state", "prioritylong", "submittime", "eligibletime", "starttime", "timelimit", "deadline",
	"numnodes", "numcpus", "tres-alloc", "requeue", "", "nodelist",
}

// Positions of the fields that the nonce ends.
const (
	fPerNode = iota
	fPerJob
	fPerSocket
	fPerTask
	fDependency
	fReqNodes
	fExcNodes
	fReason
	fFeature
	fPrefer
	fAccount
	fQOS
	fReservation
	fName
	fWorkDir
	fAdminComment
	fComment
	numFree
)

var free = [numFree]string{
	"tres-per-node", "tres-per-job", "tres-per-socket", "tres-per-task",
	"dependency", "reqnodes", "excnodes", "reason", "feature", "prefer", "account", "qos", "reservation", "name",
	"workdir", "admin_comment", "comment",
}

// ErrRow means that squeue's output is not in the requested format.
var ErrRow = errors.New("squeue: unexpected output")

// QueueParser turns squeue's output into jobs. It caches parsed requests and dependency lists across polls, since they
// repeat. No string of a job points into the output, so a remembered job doesn't keep a whole poll in memory.
type QueueParser struct {
	// Release is Slurm's, "" = the oldest.
	Release string
	// NoExcNodes: the release has no field for excluded nodes; see LacksExcNodes.
	NoExcNodes bool
	// Ours reports whether a user's job may be the gate.
	Ours func(uid uint32) bool
	// Apart are the partitions that keep other jobs off the nodes of each job, including the gate.
	Apart map[string]bool
	// Tiers are the partitions' PriorityTier.
	Tiers map[string]int
	// Awaited holds the jobs and arrays that jobs without a GPU depend on, from the last output.
	Awaited map[string]bool

	requests map[TRES]job.GPURequest
	deps     map[string]job.Dependencies
}

// queueRow is one row. Its fields point into the output.
type queueRow struct {
	id     []byte
	number int64
	head   []byte // the plain fields, not yet cut
	plain  [numPlain][]byte
	free   [numFree][]byte
}

// Format is the format for squeue -O, with the nonce as a mark.
func (p *QueueParser) Format(nonce string) string {
	var b strings.Builder
	b.WriteString("jobid:" + nonce)
	for i, f := range plain {
		end := "|"
		if i == numPlain-1 {
			end = nonce
		}
		if i == pExclusive {
			f = exclusiveField(p.Release)
		}
		b.WriteString("," + f + ":" + end)
	}
	for i, f := range free {
		if p.has(i) {
			b.WriteString("," + f + ":" + nonce)
		}
	}
	return b.String()
}

// has reports whether the format has a free field.
func (p *QueueParser) has(field int) bool {
	return field != fExcNodes || !p.NoExcNodes
}

// maxCached bounds the cached requests and dependency lists.
const maxCached = 4096

// Parse reads one poll's output into dst: the jobs that request a GPU, in their order, and the gates. The error is
// ErrRow. Jobs that have ended are skipped, and jobs with fields too long to understand.
func (p *QueueParser) Parse(
	dst []job.Job, out []byte, nonce string,
) (jobs []job.Job, gates []job.GateState, err error) {
	if p.requests == nil || len(p.requests) > maxCached || len(p.deps) > maxCached {
		p.requests = map[TRES]job.GPURequest{}
		p.deps = map[string]job.Dependencies{}
	}
	jobs = dst[:0]
	p.Awaited = map[string]bool{}
	mark := []byte(nonce)
	var r queueRow
	for n := 0; len(out) > 0; n++ {
		if out, err = r.cut(out, mark, n, p.has); err != nil {
			return nil, nil, err
		}
		request := p.request(&r)
		// Only the comment identifies the gate, since its other fields may be misread, which misread is to report.
		owner, mayBeGate := job.GateOwner(string(r.free[fComment]))
		if request.Kind == job.NoGPU && !mayBeGate {
			for _, d := range p.dependencies(&r).List {
				if d.OnEnd() {
					p.Awaited[d.Job] = true
				}
			}
			continue
		}
		uid, err := r.cutPlain()
		if err != nil && isTooLong(r.head) {
			continue // a huge list of partitions, say
		}
		if err != nil {
			return nil, nil, err
		}
		state, active := baseState(r.plain[pState])
		expedited := string(r.plain[pState]) == "EXPEDITING"
		if expedited && len(r.plain[pNodeList]) > 0 {
			state = job.Completing // the job has not left its node
			expedited = false
		}
		if mayBeGate && p.Ours != nil && p.Ours(uid) {
			g := r.gate(state)
			g.Owner = owner
			if state == job.Pending {
				g.Misread = p.misread(&r)
			}
			gates = append(gates, g)
			continue
		}
		if !active || request.Kind == job.NoGPU {
			continue
		}
		j := job.Job{UID: uid, State: state, Request: request, Expedited: expedited}
		j.TooLong = state == job.Pending && r.forget()
		if state == job.Pending && isTooLong(r.free[fDependency]) {
			continue // the bridge could not restore the dependency
		}
		if p.fill(&j, &r) {
			jobs = append(jobs, j)
		}
	}
	return jobs, gates, nil
}

// cut cuts row n at the marks, and returns the output after it.
func (r *queueRow) cut(out, mark []byte, n int, has func(field int) bool) (rest []byte, err error) {
	var ok bool
	if r.id, rest, ok = bytes.Cut(out, mark); !ok {
		return nil, fmt.Errorf("%w: row %d has no start", ErrRow, n)
	}
	if r.number, ok = digits(r.id); !ok {
		return nil, fmt.Errorf("%w: row %d begins with %.40q", ErrRow, n, r.id)
	}
	r.head, rest, ok = bytes.Cut(rest, mark)
	for i := 0; i < numFree && ok; i++ {
		if has(i) {
			r.free[i], rest, ok = bytes.Cut(rest, mark)
		}
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: job %d is cut short", ErrRow, r.number)
	case len(rest) > 0 && rest[0] != '\n':
		return nil, fmt.Errorf("%w: job %d has more fields than requested", ErrRow, r.number)
	}
	return rest[min(1, len(rest)):], nil
}

// forget empties fields that were cut off, and reports whether any matter.
func (r *queueRow) forget() bool {
	found := false
	for i, f := range r.free {
		if i != fDependency && i != fAdminComment && isTooLong(f) {
			r.free[i] = nil
			found = found || i != fName && i != fWorkDir
		}
	}
	return found || isTooLong(r.free[fDependency]) || isTooLong(r.head)
}

// cutPlain cuts the fields that only Slurm writes, and returns the job's user.
func (r *queueRow) cutPlain() (uid uint32, err error) {
	b := r.head
	for i := range r.plain {
		f, rest, more := bytes.Cut(b, []byte{'|'})
		r.plain[i] = f
		if more != (i < numPlain-1) {
			return 0, fmt.Errorf("%w: job %d has too few fields", ErrRow, r.number)
		}
		b = rest
	}
	n, ok := digits(r.plain[pUID])
	if !ok || n > math.MaxUint32 {
		return 0, fmt.Errorf("%w: job %d has the user number %.20q", ErrRow, r.number, r.plain[pUID])
	}
	return uint32(n), nil
}

func (r *queueRow) gate(state job.JobState) job.GateState {
	g := job.GateState{
		ID: string(r.id), Open: state != job.Pending, Begin: parseTime(r.plain[pEligible]),
		Partitions: strings.Split(string(r.plain[pPartition]), ","),
	}
	g.Priority, _ = digits(r.plain[pPriority])
	return g
}

// fill sets the other fields of a job. It returns false for a row of several tasks, which --array should prevent.
func (p *QueueParser) fill(j *job.Job, r *queueRow) bool {
	pf := &r.plain
	ff := &r.free
	if !p.name(j, r) {
		return false
	}
	j.ID = r.number
	j.User = p.text(pf[pUser])
	j.Partition = p.text(pf[pPartition])
	j.Reason = p.text(ff[fReason])
	j.Submit, j.Eligible = parseTime(pf[pSubmit]), parseTime(pf[pEligible])
	j.TimeLimit, j.Deadline = parseLimit(pf[pLimit]), parseTime(pf[pDeadline])
	if j.State != job.Pending {
		j.Start = parseTime(pf[pStart])
	}
	j.Dependency = p.dependencies(r)
	j.ReqNodes = p.text(ff[fReqNodes])
	j.ExcNodes = p.text(ff[fExcNodes])
	j.Nodes = p.text(pf[pNodeList])
	j.Features, j.Prefers = p.text(ff[fFeature]), p.text(ff[fPrefer])
	j.Account = p.text(ff[fAccount])
	j.QOS = p.text(ff[fQOS])
	j.Reservation = p.text(ff[fReservation])
	j.Exclusive = parseExclusive(p.Release, pf[pExclusive])
	j.Requeue = string(pf[pRequeue]) == "1"
	j.Name, j.WorkDir = p.text(ff[fName]), p.text(ff[fWorkDir])
	j.Comment = p.text(ff[fComment][:min(maxComment, len(ff[fComment]))])
	j.Priority, _ = digits(pf[pPriority])
	for name := range strings.SplitSeq(j.Partition, ",") {
		j.Tier = max(j.Tier, p.Tiers[name])
	}
	j.HetID, _ = digits(pf[pHet])
	setSize(j, pf[pNodes], pf[pCPUs], pf[pTRES])
	j.AdminComment = p.text(ff[fAdminComment][:min(maxComment, len(ff[fAdminComment]))])
	if strings.HasPrefix(j.AdminComment, job.CommentPrefix) {
		j.Note, j.AdminComment = job.ParseNote(j.AdminComment)
	}
	return true
}

// name sets the job's name in scontrol; see fill.
func (p *QueueParser) name(j *job.Job, r *queueRow) bool {
	pf := &r.plain
	if IsNone(string(pf[pTask])) {
		j.Ref = intern(r.id)
		return true
	}
	array, ok := digits(pf[pArray])
	if _, isTask := digits(pf[pTask]); !ok || !isTask {
		return false
	}
	j.ArrayID = array
	var buf [48]byte
	j.Ref = intern(append(append(append(buf[:0], pf[pArray]...), '_'), pf[pTask]...))
	return true
}

func (p *QueueParser) request(r *queueRow) job.GPURequest {
	ff := &r.free
	if IsNone(string(ff[fPerNode])) && IsNone(string(ff[fPerJob])) && IsNone(string(ff[fPerSocket])) &&
		IsNone(string(ff[fPerTask])) {
		return job.GPURequest{}
	}
	t := TRES{
		PerNode: intern(ff[fPerNode]), PerJob: intern(ff[fPerJob]),
		PerSocket: intern(ff[fPerSocket]), PerTask: intern(ff[fPerTask]),
	}
	a, ok := p.requests[t]
	if !ok {
		a = ParseRequest(t)
		p.requests[t] = a
	}
	return a
}

func (p *QueueParser) dependencies(r *queueRow) job.Dependencies {
	b := r.free[fDependency]
	if IsNone(string(b)) {
		return job.Dependencies{}
	}
	s := intern(b)
	d, ok := p.deps[s]
	if !ok {
		d = ParseDependencies(s)
		p.deps[s] = d
	}
	return d
}

// text returns a field's value, "" for Slurm's words for none.
func (p *QueueParser) text(b []byte) string {
	if IsNone(string(b)) {
		return ""
	}
	return intern(b)
}

// baseState maps squeue's state to the states that the bridge distinguishes. A flag on a base state (CONFIGURING,
// RESIZING, …) becomes the base state. active is false if the job has ended.
func baseState(b []byte) (state job.JobState, active bool) {
	switch string(b) {
	case "PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED", "EXPEDITING":
		return job.Pending, true
	case "RUNNING", "CONFIGURING", "RESIZING", "SIGNALING", "POWER_UP_NODE":
		return job.Running, true
	case "SUSPENDED", "STOPPED":
		return job.Suspended, true
	case "COMPLETING", "STAGE_OUT", "REQUEUED":
		return job.Completing, true
	}
	return job.JobState(b), false
}

// setSize sets a job's size from its trackable resources ("cpu=2,mem=200M, node=1,…"). squeue's own numbers don't
// suffice: MinMemory may be per CPU or per node, and a pending job's NumNodes is a guess (2 for -n2 -c4).
func setSize(j *job.Job, nodes, cpus, tres []byte) {
	n, _ := leading(nodes)
	mem := 0.0
	for len(tres) > 0 {
		var item []byte
		item, tres, _ = bytes.Cut(tres, []byte{','})
		if v, ok := bytes.CutPrefix(item, []byte("mem=")); ok {
			mem = ParseMiB(v)
		} else if v, ok := bytes.CutPrefix(item, []byte("node=")); ok {
			n, _ = leading(v)
		}
	}
	j.NumNodes = int(min(n, maxCount))
	j.CPUs = number(cpus)
	j.HostMemMiB = mem / float64(max(1, n))
}

// intern returns the same string in memory for equal bytes.
func intern(b []byte) string { return unique.Make(string(b)).Value() }

// ExcludedFormat is the format for squeue --format that ParseExcluded reads.
const ExcludedFormat = "%A|%x"

// ArraysFormat is the format for squeue --format, without --array, that ParseArrayLimits reads.
const ArraysFormat = "%F|%K"

// ParseArrayLimits reads from rows such as "7|0-3,9%2" how many tasks of each array may run at a time, by the array's
// number. Neither field can contain text of users.
func ParseArrayLimits(out []byte) map[int64]int {
	limits := map[int64]int{}
	for line := range bytes.Lines(out) {
		id, tasks, _ := bytes.Cut(bytes.TrimSpace(line), []byte{'|'})
		n, isNumber := digits(id)
		_, limit, limited := bytes.Cut(tasks, []byte{'%'})
		if most := number(limit); isNumber && limited && most > 0 {
			limits[n] = most
		}
	}
	return limits
}

// ExcludesTooMuch is ParseExcluded's value for a list longer than MostOfField.
const ExcludesTooMuch = "\x00"

// ParseExcluded reads the nodes that jobs exclude, by the job's number. Neither field can contain text of users.
func ParseExcluded(out []byte) map[int64]string {
	dst := map[int64]string{}
	for line := range bytes.Lines(out) {
		id, nodes, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte{'|'})
		n, isNumber := digits(id)
		if !ok || !isNumber {
			continue
		}
		dst[n] = string(nodes)
		if isTooLong(nodes) {
			dst[n] = ExcludesTooMuch
		}
		if IsNone(dst[n]) {
			dst[n] = ""
		}
	}
	return dst
}
