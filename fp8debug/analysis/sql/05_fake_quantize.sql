-- What is left of x after a cast to fmt with this scale: quantize(x*scale)*(1/scale), all in FLOAT as kernels do.
create or replace macro fake_quantize(x, scale, fmt) as
    quantize(x::float * scale::float, fmt) * (1::float / scale::float);
