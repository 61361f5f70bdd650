package text

import (
	"bytes"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"pgregory.net/rapid"
)

// However the output is cut into pieces, short fields come through and long ones are cut.
func TestBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const mark = "~#~"
		field := rapid.Custom(func(t *rapid.T) string {
			n := rapid.SampledFrom([]int{0, 1, 3, 50, MostOfField - 1, MostOfField, MostOfField + 1, 3 * MostOfField}).Draw(t, "bytes")
			return strings.Repeat(rapid.SampledFrom([]string{"a", "~", "#"}).Draw(t, "of"), n)
		})
		fields := rapid.SliceOfN(field, 0, 6).Draw(t, "fields")
		var in, want bytes.Buffer
		for _, f := range fields {
			in.WriteString(f + mark)
		}
		last := rapid.SampledFrom([]string{"", "\n", "x~#"}).Draw(t, "rest")
		in.WriteString(last)
		// What a field holds may itself run into the mark: the first mark ends it.
		for text := in.Bytes(); ; {
			f, rest, ok := bytes.Cut(text, []byte(mark))
			want.Write(f[:min(len(f), MostOfField)])
			if len(f) > MostOfField {
				want.Write(tooLong)
			}
			if !ok {
				break
			}
			want.WriteString(mark)
			text = rest
		}
		var got bytes.Buffer
		b := NewBounded(&got, mark)
		piece := rapid.SampledFrom([]int{1, 2, 7, 4096, 1 << 20}).Draw(t, "piece")
		for text := in.Bytes(); len(text) > 0; {
			n := min(len(text), piece)
			if m, err := b.Write(text[:n]); err != nil || m != n {
				t.Fatal(m, err)
			}
			text = text[n:]
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("%d bytes, want %d", got.Len(), want.Len())
		}
	})
}

// bounded is what comes of output that is read with bounds.
func bounded(t *testing.T, out []byte) []byte {
	t.Helper()
	var kept bytes.Buffer
	b := NewBounded(&kept, recordedNonce)
	if _, err := b.Write(out); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return kept.Bytes()
}

// A job whose own fields are endless (a list of partitions) costs that job alone.
func TestLongPartitionsOfOneJob(t *testing.T) {
	text := recorded(t, "24.11", "queue")
	honest, gates := parseRecorded(t, "24.11", "queue")
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Split(line, []byte(recordedNonce))
	head := bytes.Split(fields[1], []byte("|"))
	head[pPartition] = bytes.Repeat([]byte("gpu,"), MostOfField)
	fields[1] = bytes.Join(head, []byte("|"))
	hostile := append(bytes.Join(fields, []byte(recordedNonce)), '\n')
	p := QueueParser{Form: FormOf("24.11"), Ours: func(uid uint32) bool { return uid == recordedSlurm }}
	jobs, seen, err := p.Parse(nil, bounded(t, append(hostile, text...)), recordedNonce)
	if err != nil || len(jobs) != len(honest) || len(seen) < len(gates) {
		t.Errorf("%d jobs and %d gates, want %d and %d: %v", len(jobs), len(seen), len(honest), len(gates), err)
	}
}

// A hostile array's tasks are known to be too long to read; what else is there is read.
func TestLongFieldsOfAnArray(t *testing.T) {
	text := recorded(t, "24.11", "queue")
	honest, _ := parseRecorded(t, "24.11", "queue")
	mark := []byte(recordedNonce)
	var hostile bytes.Buffer
	rows, pending := 0, 0
	for line := range bytes.Lines(text) {
		fields := bytes.Split(line, mark)
		if len(fields) != numFree+3 {
			continue
		}
		for range 3 { // an array has a row for each task
			fields[2+fExcNodes] = bytes.Repeat([]byte("n1,"), 20_000)
			hostile.Write(bytes.Join(fields, mark))
			rows++
		}
	}
	hostile.Write(text)
	kept := bounded(t, hostile.Bytes())
	if most := len(text) + rows*(MostOfField+2000); len(kept) > most {
		t.Errorf("%d bytes are kept of %d, want at most %d", len(kept), hostile.Len(), most)
	}
	p := QueueParser{Form: FormOf("24.11")}
	jobs, _, err := p.Parse(nil, kept, recordedNonce)
	if err != nil {
		t.Fatal(err)
	}
	for i := range jobs[:len(jobs)-len(honest)] {
		if j := &jobs[i]; j.State == job.Pending {
			pending++
			if !j.TooLong || j.ExcNodes != "" {
				t.Fatalf("job %s: %+v", j.Ref, j)
			}
		}
	}
	if rows == 0 || pending == 0 {
		t.Fatalf("%d rows, %d jobs that wait", rows, pending)
	}
	for i := range jobs[len(jobs)-len(honest):] {
		j := &jobs[len(jobs)-len(honest)+i]
		if j.TooLong || honest[j.Ref] == nil {
			t.Errorf("an honest job: %+v", j)
		}
	}
}
