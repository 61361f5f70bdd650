package profimport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// Series is one series of a range query's answer. Samples that are no figure (NaN,
// DCGM's blanks) are still among it.
type Series struct {
	Metric string // __name__
	Labels map[string]string
	T      []float64 // s since 1970, ascending
	V      []float64
}

// maxAnswer bounds an answer, bytes.
const maxAnswer = 512 << 20

// ReadPrometheus reads answers of Prometheus' /api/v1/query_range as JSON: one, or
// several one after the other. Errors are a *table.Error; its column is the byte of the
// line.
func ReadPrometheus(r io.Reader, name string) ([]Series, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = errors.New("more than 512 MiB; ask for fewer jobs or a longer step")
	}
	if err != nil {
		return nil, &table.Error{File: name, Err: fmt.Errorf("read: %w", err)}
	}
	p := answer{dec: json.NewDecoder(bytes.NewReader(data))}
	for n := 0; ; n++ {
		err := p.document()
		if errors.Is(err, io.EOF) && n > 0 {
			return p.series, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, &table.Error{File: name, Err: table.ErrEmpty}
		}
		if err != nil {
			at := p.dec.InputOffset()
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				at = max(at, syntax.Offset)
			}
			line, column := place(data, at)
			return nil, &table.Error{File: name, Line: line, Column: strconv.Itoa(column), Err: err}
		}
	}
}

// place returns the line and the byte in it, both from 1, of an offset.
func place(data []byte, offset int64) (line, column int) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	return 1 + bytes.Count(before, []byte{'\n'}), len(before) - bytes.LastIndexByte(before, '\n')
}

// answer is the reading of answers, series by series.
type answer struct {
	dec    *json.Decoder
	series []Series
}

// document reads one answer; io.EOF = there is no more.
func (p *answer) document() error {
	if t, err := p.dec.Token(); err != nil {
		return err
	} else if t != json.Delim('{') {
		return fmt.Errorf("it is no answer of /api/v1/query_range: it begins with %.20v", t)
	}
	var status, kind, what string
	hasData := false
	err := p.object(func(key string) error {
		switch key {
		case "status":
			return p.dec.Decode(&status)
		case "errorType":
			return p.dec.Decode(&kind)
		case "error":
			return p.dec.Decode(&what)
		case "data":
			hasData = true
			return p.data()
		}
		return p.skip()
	})
	switch {
	case err != nil:
		return noEOF(err)
	case what != "" || status == "error":
		return fmt.Errorf("the server answered %.40s: %.400s", kind, what)
	case !hasData:
		return errors.New("it is no answer of /api/v1/query_range: there is no data in it")
	}
	return nil
}

// object reads the rest of an object after its brace.
func (p *answer) object(member func(key string) error) error {
	for p.dec.More() {
		t, err := p.dec.Token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return errors.New("it is no answer of /api/v1/query_range: not an object")
		}
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := p.dec.Token()
	return err
}

func (p *answer) open(brace json.Delim) error {
	t, err := p.dec.Token()
	if err != nil {
		return err
	}
	if t != brace {
		return fmt.Errorf("it is no answer of /api/v1/query_range: %.20v where %v should be", t, brace)
	}
	return nil
}

func (p *answer) skip() error {
	var any json.RawMessage
	return p.dec.Decode(&any)
}

func (p *answer) data() error {
	if err := p.open('{'); err != nil {
		return err
	}
	return p.object(func(key string) error {
		switch key {
		case "resultType":
			var kind string
			if err := p.dec.Decode(&kind); err != nil {
				return err
			}
			if kind != "matrix" {
				return fmt.Errorf("resultType is %.20q, that of a range query is matrix", kind)
			}
			return nil
		case "result":
			if err := p.open('['); err != nil {
				return err
			}
			for p.dec.More() {
				if err := p.one(); err != nil {
					return fmt.Errorf("series %d: %w", len(p.series)+1, err)
				}
			}
			return p.open(']')
		}
		return p.skip()
	})
}

// one reads one series.
func (p *answer) one() error {
	var in struct {
		Metric map[string]string `json:"metric"`
		Values [][2]any          `json:"values"`
	}
	if err := p.dec.Decode(&in); err != nil {
		return err
	}
	s := Series{Metric: in.Metric["__name__"], Labels: in.Metric, T: make([]float64, len(in.Values)), V: make([]float64, len(in.Values))}
	for i, pair := range in.Values {
		t, ok := pair[0].(float64)
		text, isText := pair[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if !ok || !isText || err != nil && !math.IsInf(v, 0) {
			return fmt.Errorf("value %d: %.60v is no [time, \"number\"]", i+1, pair)
		}
		if i > 0 && t <= s.T[i-1] {
			return fmt.Errorf("value %d: its time is not after the one before", i+1)
		}
		s.T[i], s.V[i] = t, v
	}
	p.series = append(p.series, s)
	return nil
}

// noEOF distinguishes a document that breaks off from the end of all documents.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
