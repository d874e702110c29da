// A stand-in for a GraphPipe server in Go: net/http, the same arithmetic, and just enough of
// flatbuffers to answer graphpipe_rates.py. It checks nothing.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
)

func u32(b []byte, at int) int { return int(binary.LittleEndian.Uint32(b[at:])) }

func field(b []byte, table, slot int) int {
	vt := table - int(int32(binary.LittleEndian.Uint32(b[table:])))
	return table + int(binary.LittleEndian.Uint16(b[vt+4+2*slot:]))
}
func follow(b []byte, at int) int { return at + u32(b, at) }

func handle(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "no body", 400)
		return
	}
	infer := follow(b, field(b, u32(b, 0), 1))
	tensor := follow(b, follow(b, field(b, infer, 2))+4)
	data := follow(b, field(b, tensor, 2))
	n := u32(b, data) / 8
	in := make([]float64, n)
	for i := range in {
		in[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[data+4+8*i:]))
	}
	for i := range in {
		in[i] *= 2
	}
	head := []byte{
		12, 0, 0, 0, 0, 0, 6, 0, 8, 0, 4, 0,
		6, 0, 0, 0, 4, 0, 0, 0,
		1, 0, 0, 0, 16, 0, 0, 0, 0, 0,
		10, 0, 16, 0, 11, 0, 12, 0, 4, 0,
		10, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 11, 4, 0, 0, 0,
		1, 0, 0, 0, byte(n), byte(n >> 8), byte(n >> 16), 0, 0, 0, 0, 0,
		byte(8 * n), byte(8 * n >> 8), byte(8 * n >> 16), byte(8 * n >> 24),
	}
	out := make([]byte, len(head)+8*n)
	copy(out, head)
	for i, x := range in {
		binary.LittleEndian.PutUint64(out[len(head)+8*i:], math.Float64bits(x))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", fmt.Sprint(len(out)))
	w.Write(out)
}

func main() {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	http.Serve(l, http.HandlerFunc(handle))
}
