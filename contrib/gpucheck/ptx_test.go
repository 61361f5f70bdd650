package main

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// ptx plays one thread of a kernel of kernels.ptx after another: as much of PTX as these use. A register holds the bits
// of its value.
type ptx struct {
	t      *testing.T
	params map[string][]string // of each kernel
	body   map[string][]string
	mem    map[uint64]uint32 // words by their address
}

func newPTX(t *testing.T) *ptx {
	t.Helper()
	p := &ptx{t: t, params: map[string][]string{}, body: map[string][]string{}, mem: map[uint64]uint32{}}
	text := regexp.MustCompile(`//.*`).ReplaceAllString(kernelsPTX, "")
	for _, m := range regexp.MustCompile(`(?s)\.entry (\w+)\((.*?)\)\s*\{(.*?)\n\}`).FindAllStringSubmatch(text, -1) {
		for param := range strings.SplitSeq(m[2], ",") {
			p.params[m[1]] = append(p.params[m[1]], strings.Fields(param)[2])
		}
		for line := range strings.Lines(m[3]) {
			if line = strings.TrimSuffix(strings.TrimSpace(line), ";"); line != "" && line[0] != '.' {
				p.body[m[1]] = append(p.body[m[1]], line)
			}
		}
	}
	return p
}

// launch plays all threads, and returns how many instructions they took.
func (p *ptx) launch(kernel string, blocks, threads int, args ...uint64) (steps int) {
	p.t.Helper()
	for b := range blocks {
		for t := range threads {
			regs := map[string]uint64{
				"%tid.x": uint64(t), "%ctaid.x": uint64(b), "%ntid.x": uint64(threads), "%nctaid.x": uint64(blocks),
			}
			for i, name := range p.params[kernel] {
				regs["["+name+"]"] = args[i]
			}
			steps += p.thread(p.body[kernel], regs)
		}
	}
	return steps
}

// value reads an operand: a register, a float's bits, a number, or the address in brackets.
func (p *ptx) value(regs map[string]uint64, operand string) uint64 {
	operand = strings.TrimSpace(operand)
	if v, is := regs[operand]; is {
		return v
	}
	operand = strings.Trim(operand, "[]")
	if v, is := regs[operand]; is {
		return v
	}
	if bits, is := strings.CutPrefix(operand, "0f"); is {
		b, err := hex.DecodeString(bits)
		if err != nil || len(b) != 4 {
			p.t.Fatalf("a float %s", operand)
		}
		return uint64(binary.BigEndian.Uint32(b))
	}
	v, err := strconv.ParseInt(operand, 10, 64)
	if err != nil {
		p.t.Fatalf("an operand %s", operand)
	}
	return uint64(v)
}

func float(bits uint64) float64 { return float64(math.Float32frombits(uint32(bits))) }
func bits(v float64) uint64     { return uint64(math.Float32bits(float32(v))) }
func truth(is bool) uint64      { return map[bool]uint64{true: 1}[is] }
func same(v []uint64) uint64    { return v[0] }
func low(v []uint64) uint64     { return uint64(uint32(v[0])) }

// instructions are those that make a register of operands.
var instructions = map[string]func(v []uint64) uint64{
	"ld.param.u64": same, "mov.u32": same, "mov.f32": same, "cvta.to.global.u64": same,
	"cvt.u64.u32": low, "cvt.u32.u64": low,
	"cvt.rn.f32.u32": func(v []uint64) uint64 { return bits(float64(uint32(v[0]))) },
	"fma.rn.f32":     func(v []uint64) uint64 { return bits(math.FMA(float(v[0]), float(v[1]), float(v[2]))) },
	"add.f32":        func(v []uint64) uint64 { return bits(float(v[0]) + float(v[1])) },
	"add.s32":        func(v []uint64) uint64 { return uint64(uint32(v[0] + v[1])) },
	"add.s64":        func(v []uint64) uint64 { return v[0] + v[1] },
	"mul.wide.u32":   func(v []uint64) uint64 { return uint64(uint32(v[0])) * uint64(uint32(v[1])) },
	"mad.lo.s32":     func(v []uint64) uint64 { return uint64(uint32(v[0]*v[1] + v[2])) },
	"shl.b64":        func(v []uint64) uint64 { return v[0] << v[1] },
	"setp.eq.u64":    func(v []uint64) uint64 { return truth(v[0] == v[1]) },
	"setp.ge.u64":    func(v []uint64) uint64 { return truth(v[0] >= v[1]) },
	"setp.ne.s32":    func(v []uint64) uint64 { return truth(uint32(v[0]) != uint32(v[1])) },
	"setp.geu.f32":   func(v []uint64) uint64 { return truth(!(float(v[0]) < float(v[1]))) },
}

func (p *ptx) thread(body []string, regs map[string]uint64) (steps int) {
	for at := 0; ; at++ {
		line := body[at]
		if strings.HasSuffix(line, ":") {
			continue
		}
		steps++
		if guard, rest, guarded := strings.Cut(line, " "); guarded && line[0] == '@' {
			if regs[guard[1:]] == 0 {
				continue
			}
			line = rest
		}
		op, rest, _ := strings.Cut(line, " ")
		to, operands, _ := strings.Cut(rest, ",")
		switch does := instructions[op]; {
		case op == "ret":
			return steps
		case op == "bra":
			at = slices.Index(body, rest+":")
		case strings.HasSuffix(op, ".v4.f32"): // ld.global.v4.f32 {…}, [at] or st.global.v4.f32 [at], {…}
			left, right, _ := strings.Cut(rest, "{")
			list, after, _ := strings.Cut(right, "}")
			from := p.value(regs, strings.Trim(left+after, ", "))
			if from%16 != 0 {
				p.t.Fatalf("%s: address %d", line, from)
			}
			for i, r := range strings.Split(list, ", ") {
				if word := from + uint64(4*i); op == "ld.global.v4.f32" {
					regs[r] = uint64(p.mem[word])
				} else {
					p.mem[word] = uint32(p.value(regs, r))
				}
			}
		case op == "st.u32", op == "st.global.u32", op == "st.global.f32":
			p.mem[p.value(regs, to)] = uint32(p.value(regs, operands))
		case does == nil:
			p.t.Fatalf("an instruction %s", line)
		default:
			var v []uint64
			for o := range strings.SplitSeq(operands, ",") {
				v = append(v, p.value(regs, o))
			}
			regs[to] = does(v)
		}
	}
}

// The kernel that clients run computes what they check, each thread in its place.
func TestPTXOfCongruential(t *testing.T) {
	const blocks, threads, seed, rounds = 3, 4, math.MaxUint32 - 5, 7
	p := newPTX(t)
	p.launch("congruential", blocks, threads, 4096, seed, rounds)
	var got []uint32
	for i := range uint64(blocks * threads) {
		got = append(got, p.mem[4096+4*i])
	}
	if !congruential(got, seed, rounds) || len(p.mem) != len(got) {
		t.Errorf("%v, %d words written", got, len(p.mem))
	}
	if got[7] ^= 1 << 31; congruential(got, seed, rounds) {
		t.Error("a wrong bit isn't seen")
	}
}

// A unit of arithmetic is 2048 multiply-adds a thread, and writes nothing.
func TestPTXOfMultiplyAdd(t *testing.T) {
	p := newPTX(t)
	few, more := p.launch("multiply_add", 1, 1, 64, 1), p.launch("multiply_add", 1, 1, 64, 2)
	if n := more - few; n < 2048 || n > 2048*12/10 || len(p.mem) > 0 {
		t.Errorf("a unit takes %d instructions, and %d words are written", n, len(p.mem))
	}
}

// A copy reads each word of the first half once, writes each of the second once, and adds 1 to the first of four.
func TestPTXOfCopyHalf(t *testing.T) {
	const half = 29 // not a multiple of the threads
	p := newPTX(t)
	for i := range uint64(4 * half) {
		p.mem[1024+4*i] = math.Float32bits(float32(i))
	}
	p.launch("copy_half", 3, 4, 1024, half)
	for i := range uint64(4 * half) {
		want := float32(i)
		if i%4 == 0 {
			want++
		}
		must.Equal(t, math.Float32frombits(p.mem[1024+16*half+4*i]), want, "word %d", i)
	}
	must.Equal(t, len(p.mem), 8*half, "words")
}

// The fault is one store, to the address that it is given.
func TestPTXOfStore(t *testing.T) {
	p := newPTX(t)
	p.launch("store", 1, 1, 1<<44+4)
	if len(p.mem) != 1 || p.mem[1<<44+4] != 1 {
		t.Errorf("%v", p.mem)
	}
}
