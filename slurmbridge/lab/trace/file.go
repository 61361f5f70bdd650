package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// errWhat: none of the three formats of jobs.
var errWhat = errors.New("neither CSV (job,submit_s,app,duration_s,user) nor the Standard Workload Format (18 numbers a line) nor what sacct --parsable2 prints (JobID|JobName|…)")

// ReadJobsFile reads jobs from a file in any of the three formats, which it recognises by the
// contents; see ReadJobs, ReadSWF and ReadSacct.
func ReadJobsFile(path string, known ...string) ([]Job, Skipped, error) {
	f, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	br := bufio.NewReader(f)
	start, err := br.Peek(peeked)
	if len(start) == 0 && err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, &Error{File: path, Err: fmt.Errorf("read: %w", err)}
	}
	switch recognise(string(start)) {
	case "":
		return nil, nil, &Error{File: path, Err: table.ErrEmpty}
	case "swf":
		return ReadSWF(br, path, known...)
	case "sacct":
		return ReadSacct(br, path, known...)
	case "csv":
		jobs, err := ReadJobs(br, path, known...)
		return jobs, nil, err
	}
	return nil, nil, &Error{File: path, Line: 1, Err: errWhat}
}

// peeked is how much of a file is read to recognise its format, bytes.
const peeked = 4096

// recognise returns the format of a file that starts so: csv, swf, sacct, "" for
// none (it is empty), "?" for another.
func recognise(start string) string {
	start = strings.TrimLeftFunc(strings.TrimPrefix(start, "\ufeff"), unicode.IsSpace)
	first, _, _ := strings.Cut(start, "\n")
	switch {
	case first == "":
		return ""
	case first[0] == ';':
		return "swf"
	case first[0] == '#':
		return "csv" // the one of the three that has such comments
	case strings.Contains(first, "|"):
		return "sacct"
	case strings.Contains(first, ","):
		return "csv"
	}
	fields := strings.Fields(first)
	if _, err := table.ParseNumber(fields[0]); err == nil && len(fields) == len(swfFields) {
		return "swf"
	}
	return "?"
}

// ReadProfilesFile is ReadProfiles for a file.
func ReadProfilesFile(path string) ([]*rlcore.Profile, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadProfiles(f, path)
}

// ReadPairsFile is ReadPairs for a file.
func ReadPairsFile(path string, known ...string) ([]Pair, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadPairs(f, path, known...)
}

func open(path string) (*os.File, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		var where *os.PathError
		if errors.As(err, &where) {
			err = where.Err // the file's name is the Error's
		}
		return nil, &Error{File: path, Err: fmt.Errorf("open: %w", err)}
	}
	return f, nil
}
